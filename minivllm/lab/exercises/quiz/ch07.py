"""Five questions on notebook 07: chunked prefill"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "Why may a prompt be cut into chunks without changing the answer?",
        "The cache holds K and V of the earlier chunks",
        "Later tokens attend to them as if all had come together.",
        {
            "The model was trained on prompts in chunks": (
                "It knows nothing of them. A chunk is a few new tokens that follow tokens already "
                "in the cache."
            ),
            "It does change the answer, but only a little": (
                "Only the rounding may differ; what is computed is the same."
            ),
        },
    ),
    Question(
        "What is gained by chunks?",
        "Running answers do not pause for a long prompt",
        "ITL's p99 falls; its median hardly moves.",
        {
            "The prompt itself is done sooner than whole": (
                "Its own first token usually comes a little later."
            ),
            "Less arithmetic in total for the same tokens": (
                "It is the same. Small chunks only read the weights more often."
            ),
        },
    ),
    Question(
        "What is the price of a very small budget?",
        "All weights are read for few tokens",
        (
            "And long prompts wait for many steps. Below some size the pauses get no shorter, "
            "since reading the weights takes its time anyway."
        ),
        {
            "The activations need more memory": (
                "Activations shrink with the step. Memory is not what it costs."
            ),
            "Wrong tokens at the borders of chunks": "Borders do not matter to the answer.",
        },
    ),
    Question(
        (
            "A chunk ends in the middle of a prompt. Which token does the engine draw from its "
            "logits?"
        ),
        "None",
        "A sequence gets a token only when its last known token has been computed.",
        {
            "The next token of the prompt": (
                "That one is known; it is computed in the next chunk."
            ),
            "The first token of the answer": "It would answer before it has read the question.",
        },
    ),
    Question(
        "max_num_batched_tokens is lower than the number of requests that decode. What happens?",
        "Some of them get no token",
        (
            "Running requests are served in order, and the last ones find the budget spent. vLLM "
            "refuses such settings."
        ),
        {
            "The budget is raised for them": "A limit is a limit; nothing raises it.",
            "Two of them share a token": "A token belongs to one request.",
        },
    ),
]
