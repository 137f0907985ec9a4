"""Five questions on notebook 06b: swapping"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "What is moved when a request is swapped out?",
        "The contents of its blocks",
        (
            "They go to blocks in host memory. Its tokens stay where they always are, on the CPU; "
            "K and V are copied."
        ),
        {
            "Its tokens, prompt and answer": (
                "They are a list of numbers in the scheduler and need no move."
            ),
            "The weights of the model": "Weights belong to the model and are shared by all.",
        },
    ),
    Question(
        "When is swapping cheaper than computing again?",
        "When copying takes less time than one prefill",
        "Both grow with the length; which is less depends on the bus and on the GPU.",
        {
            "Always, since nothing has to be computed again": (
                "The bus is slow beside a GPU's memory. The paper found recomputing better for "
                "small blocks."
            ),
            "Never, since the bus is slower than the GPU": (
                "With large blocks and a fast bus it can win, and it keeps forks without "
                "computing them twice."
            ),
        },
    ),
    Question(
        "What does vLLM 0.32 do?",
        "It recomputes only",
        (
            "It relies on its prefix cache: blocks of a preempted request keep their hashes, so "
            "much may be found when it returns. Swapping was V0's."
        ),
        {
            "It swaps by default": (
                "That was a choice in V0, and not its default for single sequences."
            ),
            "It asks the user": "No argument chooses: V1 has one way.",
        },
    ),
    Question(
        "A swapped request comes back. What must be free on the GPU?",
        "As many blocks as it had, and what the step adds",
        "Its K and V are copied back whole before it can go on.",
        {
            "One block, for the next token that it computes": (
                "Attention reads all of its earlier tokens, so all of them must be there."
            ),
            "None: it goes on from the blocks on the host": (
                "The model runs on the GPU and reads the GPU's blocks."
            ),
        },
    ),
    Question(
        (
            "The copies of a step that swaps out and then reuses a block happen in the wrong "
            "order. What is the damage?"
        ),
        "The swapped request returns with wrong numbers",
        (
            "The block's new owner overwrites K and V before they are saved. No count is wrong; "
            "only tokens show it."
        ),
        {
            "A block leaks: nobody holds it and it is not free": (
                "The counts do not depend on the order of the copies."
            ),
            "The step fails with an error about the order": (
                "Nothing raises an error: the sizes fit, only the contents are wrong."
            ),
        },
    ),
]
