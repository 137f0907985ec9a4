"""Five questions on notebook 06: preemption"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        (
            "The pool is full and a running request needs a block. Under fcfs, which one is "
            "preempted?"
        ),
        "The last one that was admitted",
        "The oldest always goes on, so something always finishes.",
        {
            "The one that holds most blocks": (
                "It would lose the most work, and could be the oldest."
            ),
            "The one that needs the block": "Only if it is itself the last one admitted.",
        },
    ),
    Question(
        "What does a request keep when it is preempted by recomputing?",
        "All its tokens, also those it has generated",
        (
            "Their K and V are computed again in one prefill when it is admitted again; no token "
            "changes."
        ),
        {
            "Its prompt only; the answer begins anew": (
                "A reader may have seen the words already. They must not change."
            ),
            "Its K and V, on the host": "That is swapping, the other way.",
        },
    ),
    Question(
        (
            "Without preemption, what happens when all running requests need a block and none is "
            "free?"
        ),
        "None of them can go on, ever",
        "Each waits for blocks that only the others could give back: a deadlock.",
        {
            "The step is slower than usual": "No step can be planned at all.",
            "They share a block for a while": "Blocks are shared only for equal content.",
        },
    ),
    Question(
        "Why does a step that has preempted admit no new request?",
        "It would take the blocks that were just given back",
        (
            "The next step would preempt again. That is thrashing: work is thrown away as fast as "
            "it is done."
        ),
        {
            "The policy object is busy until the next step begins": (
                "It decides in the same call. It is a rule, not a limit of the code."
            ),
            "New requests must wait for a fixed number of steps": (
                "There is no fixed time. They are admitted as soon as all of them fits and "
                "nothing was preempted."
            ),
        },
    ),
    Question(
        "A server preempts in almost every step. What do you do first?",
        "Lower max_num_seqs",
        (
            "Or give it more blocks. Fewer at a time finish sooner when they no longer push each "
            "other out."
        ),
        {
            "Raise max_num_seqs": "More requests at once need more blocks: it gets worse.",
            "Change the victim rule": (
                "Another victim moves the cost to somebody else. The pool is too small for what "
                "is admitted."
            ),
        },
    ),
]
