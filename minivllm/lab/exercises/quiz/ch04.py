"""Five questions on notebook 04: copy-on-write"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        (
            "A prompt of 10 tokens fills blocks 1, 2 and half of block 3 (block size 4). Four "
            "samples fork and write their first tokens. How many blocks are copied?"
        ),
        "3",
        (
            "Three samples copy block 3. When the fourth one writes, it is the only reader left "
            "and writes in place."
        ),
        {
            "4": "The last writer finds a reference count of 1. There is nobody to copy for.",
            "12": "Blocks 1 and 2 are full; nobody writes into them, so they stay shared.",
        },
    ),
    Question(
        "What does a fork cost, at the moment when it happens?",
        "A second list of block ids",
        "And one more reference on each block. No K or V moves until a sequence writes.",
        {
            "A copy of the last block": (
                "The copy comes with the first write, and only if the block is still shared then."
            ),
            "A copy of all its blocks": (
                "That is what a server without block tables would have to do."
            ),
        },
    ),
    Question(
        "When must a block be copied before a write?",
        "When others hold it, too, and it is partly filled",
        (
            "Its reference count is then above 1. A write at a first slot goes to a new block "
            "anyway."
        ),
        {
            "Whenever a sequence is about to write a new token": (
                "A sequence that is alone in its block just writes."
            ),
            "Whenever it is full, before the next one is begun": (
                "Into a full block nobody writes any more."
            ),
        },
    ),
    Question(
        (
            "NeverCopies lets all samples write into one slot. Why does check_integrity() not "
            "notice?"
        ),
        "The counts are right; only the contents are wrong",
        (
            "Each block still stands in as many tables as its count says. The check is about "
            "counts. A comparison with four single requests shows the wrong words."
        ),
        {
            "It runs only once, at the very end of a run": (
                "It runs after every step, and still has nothing to say."
            ),
            "A wrong count is made good by another wrong count": (
                "Nothing cancels: the answers are wrong, and the counts were never wrong."
            ),
        },
    ),
    Question(
        "How does vLLM 0.32 serve n = 4?",
        "As four requests that share full blocks of the prompt",
        (
            "They find them in the prefix cache; each computes the partly filled block for "
            "itself. There are no forks in its core any more."
        ),
        {
            "By forking block tables, as its first engine did": (
                "That was vLLM up to 0.6.2 or 0.6.3. The core has since become simpler."
            ),
            "As four requests that share nothing with each other": (
                "They share all full blocks of the prompt, through the prefix cache."
            ),
        },
    ),
]
