"""Five questions on notebook A1: the roofline"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "What is arithmetic intensity?",
        "Operations per byte moved",
        "It decides which of a machine's two limits is met first.",
        {
            "Operations per second": (
                "That is a rate, the height in the picture, not the place on its axis."
            ),
            "The share of the peak that is reached": (
                "That is utilization. It is measured; intensity is counted."
            ),
        },
    ),
    Question(
        "A matrix in bfloat16 is multiplied with m rows, m small. What is the intensity?",
        "About m",
        "Two operations a number and row, two bytes a number: m operations per byte.",
        {
            "About 1, whatever m is": "Only if the matrix were read again for every row.",
            "About the size of the matrix": "That holds for a product of two large matrices.",
        },
    ),
    Question(
        "Why does a larger batch not lift decode attention off the memory side?",
        "Each sequence reads its own K and V",
        (
            "Operations and bytes grow alike with the batch. The intensity stays at the number of "
            "query heads that share a KV head."
        ),
        {
            "Attention is not done in parallel": (
                "It is; each sequence still reads its own K and V."
            ),
            "Softmax is slower than a product": "The count of bytes alone decides it.",
        },
    ),
    Question(
        "A measurement shows 120 % of the roof. What follows?",
        "Something is counted or measured wrongly",
        (
            "The count is too high, the peak too low, or the bytes came from a cache. Nothing "
            "beats the roof."
        ),
        {
            "The kernel is better than the machine": (
                "No kernel moves more bytes than the memory can. Look for the mistake first."
            ),
            "Nothing, some noise is normal": "Twenty per cent is no noise on a quiet machine.",
        },
    ),
    Question(
        (
            "Prefix caching makes a prefill's point move left and lower on the roofline. Is that "
            "bad?"
        ),
        "No: it computes less, so it takes less time",
        "The roof says how well a machine is used; the clock says what you wait.",
        {
            "Yes, the machine is used worse": (
                "It is, and the request is done sooner all the same."
            ),
            "Yes, it should be switched off for prefills": (
                "It would cost all the tokens that it saves."
            ),
        },
    ),
]
