"""Five questions on notebook 05: continuous batching"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "Why is a static batch slow?",
        "Its empty places wait for the longest request",
        "The model's step costs nearly the same with empty places.",
        {
            "Each request of a batch is computed alone": (
                "All of them go through the model together; that part is the same."
            ),
            "The requests of a batch must be sorted first": "No sorting is needed for it.",
        },
    ),
    Question(
        "What does the scheduler want to compute for a sequence in the next step?",
        "The tokens not computed yet, within the budget",
        "num_tokens - num_computed_tokens is one subtraction, for prompts and decodes alike.",
        {
            "One token if it decodes, else the whole prompt": (
                "That would be two rules with two phases. The subtraction gives 1 for a decode by "
                "itself."
            ),
            "An equal share of the budget for each sequence": (
                "Shares are not equal: running requests are served in order, and the last one "
                "gets what is left."
            ),
        },
    ),
    Question(
        "V0 computed a prompt alone in a step. Who paid?",
        "Requests in the middle of an answer",
        (
            "They get no token in that step. That is the decode stall: their ITL has a gap for "
            "every arrival."
        ),
        {
            "The new request: its first token came later": (
                "It came sooner, if at all different. That is why the rule was chosen."
            ),
            "Nobody, the work is the same": (
                "The work is the same and its order is not; in addition the weights are read once "
                "more."
            ),
        },
    ),
    Question(
        (
            "A short request waits behind a long one that does not fit. Why does fcfs not let it "
            "pass?"
        ),
        "The long one could starve",
        (
            "Small ones could pass for ever. Under fcfs its wait does not depend on requests that "
            "come later."
        ),
        {
            "The short one would not fit either": (
                "It would fit easily; that is what makes it look foolish."
            ),
            "It would cost more steps": (
                "It often costs fewer. The reason is the promise to the one that waits."
            ),
        },
    ),
    Question(
        "Which numbers describe a server?",
        "Throughput, TTFT and ITL",
        (
            "Static batching has the smoothest ITL of the three and the worst TTFT; one number "
            "would hide that."
        ),
        {
            "Throughput, which counts all tokens": (
                "It says nothing about a person who waits seven seconds for a first token."
            ),
            "The mean time of a request": ("A mean hides both the wait at the start and the gaps."),
        },
    ),
]
