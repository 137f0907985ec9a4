"""Five questions on notebook 11: split-KV"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "When does splitting a sequence among programs help?",
        "With few, long sequences on an idle GPU",
        "Idle processors get work.",
        {
            "Always, since more programs are faster": (
                "With many sequences the GPU is busy already, and the merge is an extra kernel."
            ),
            "When there are many short sequences": "They are many programs by themselves.",
        },
    ),
    Question(
        "What must each part hand to the merge?",
        "Its result and its log-sum-exp",
        "The second number is the part's weight in the whole.",
        {
            "Its result, and nothing else": (
                "Two results do not say how much of the softmax each one stands for."
            ),
            "The scores of all its keys": (
                "They would be as large as the sequence. One number a row will do."
            ),
        },
    ),
    Question(
        "Two parts have results 1.0 and 3.0 and equal log-sum-exps. What is the merged result?",
        "2.0",
        "Equal weights: the mean.",
        {
            "4.0": "The weights sum to one; results are not added.",
            "3.0": "The larger one wins only if its lse is far larger.",
        },
    ),
    Question(
        "Why must a part without any key store a result of 0 and an lse of -inf?",
        "So that its weight is exp(-inf) = 0",
        "Anything else would leak garbage into the answer, or make it NaN.",
        {
            "To mark that part as an error": (
                "It is no error: ranges are cut alike for sequences of different lengths."
            ),
            "An lse of 0 would do as well": "exp(0) = 1 gives the empty part a weight.",
        },
    ),
    Question(
        "Does the order in which parts are merged change the result?",
        "No, up to rounding",
        "The merge is a softmax over the lse's, and that does not know an order.",
        {
            "Yes, from left to right is right": (
                "Each part carries its own weight; the order does not matter."
            ),
            "Yes, the largest must come first": (
                "Taking out the maximum is needed for range, not for order."
            ),
        },
    ),
]
