"""Five questions on notebook 13: memory"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "gpu_memory_utilization = 0.9. What is limited to 90 % of the GPU?",
        "Weights, activations and KV cache together",
        "The cache gets what the other two leave of it.",
        {
            "The KV cache, which is nearly all of it": "It would not fit beside the weights.",
            "The weights, which come first": "Their size is what it is.",
        },
    ),
    Question(
        "The log says a maximum concurrency of 2.00x. May six requests run at once?",
        "Yes, if they are short",
        (
            "That is, shorter than max_model_len. The number is the worst case: the pool's tokens "
            "over the longest allowed request."
        ),
        {
            "No, two at the most": (
                "max_model_len reserves nothing. Blocks are taken as tokens come."
            ),
            "Yes, but four of them swap": "They run together if their blocks fit.",
        },
    ),
    Question(
        "Two GPUs have 24 and 80 GB. Why may the second one serve ten times as many chats?",
        "The weights are paid first, on both the same",
        "The chats share what is left, and that differs so much.",
        {
            "The larger one is ten times as fast": "Speed does not decide how many fit.",
            "The blocks of the larger one are smaller": "Blocks have the same size.",
        },
    ),
    Question(
        "Why does the engine run a large dummy step before it takes the pool?",
        "To measure the peak of activations",
        "A pool that leaves no room for them dies in the first full step.",
        {
            "To warm the GPU up before it serves": (
                "That is a side effect. The number is what it is for."
            ),
            "To test that the answers are right": "The dummy step's tokens mean nothing.",
        },
    ),
    Question(
        "A server with one idle user shows 90 % of its memory in use. Is something wrong?",
        "No, the pool is taken at the start",
        "What changes is how much of the pool holds tokens.",
        {
            "Yes, some of the memory has leaked": (
                "Nothing is allocated later; whatever is served, the number stays."
            ),
            "Yes, the user's chat is too long": "One chat holds a few blocks of many.",
        },
    ),
]
