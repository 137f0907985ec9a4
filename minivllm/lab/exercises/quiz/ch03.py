"""Five questions on notebook 03: paged blocks"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "Block size 4, block table [7, 2, 9]. In which slot is position 6?",
        "10",
        "Position 6 is in logical block 1, at offset 2. Entry 1 is block 2, and 2 * 4 + 2 = 10.",
        {
            "6": ("That is the position itself. It would be right only if the table were 0, 1, 2."),
            "30": "7 * 4 + 2 uses entry 0. Position 6 is in the second block, 6 // 4 = 1.",
        },
    ),
    Question(
        "When does a sequence take its next block?",
        "In the step that computes a token for which its last block has no slot",
        "Blocks come one at a time, when they are needed.",
        {
            "When it is admitted: all blocks for its longest answer": (
                "That is a slab in disguise. At admission the prompt must fit; the answer's "
                "blocks come later."
            ),
            "As soon as its last block is half full": (
                "Nothing is taken in advance; a block held without a token is waste."
            ),
        },
    ),
    Question(
        "How much memory can a sequence waste at most?",
        "One block less one slot",
        "Only its last block can be partly empty.",
        {
            "Half of what it holds": (
                "A short sequence may waste as much, but the bound does not grow with the length."
            ),
            "Nothing at all": "The last block is held whole, even for one token.",
        },
    ),
    Question(
        "A sequence has just ended, and nothing is cached. Whose is the block at the head of the "
        "free queue, which is given out next?",
        "That sequence's: it holds nothing worth keeping",
        (
            "There is no reason to wait with them. Blocks that the prefix cache could use again "
            "go to the tail."
        ),
        {
            "The block with the smallest id of all that are free": (
                "Ids are in order only at the start. After that it is the order of the queue."
            ),
            "The neighbour of the sequence's last block, which is why it is quick": (
                "Neighbourhood does not matter: the table translates each block by itself."
            ),
        },
    ),
    Question(
        "check_integrity() finds nothing wrong. What may be wrong all the same?",
        "A sequence reads a block of another one",
        (
            "If each block is still counted correctly, nothing is found: counts know nothing of "
            "contents. Only a comparison of tokens, with the oracle, sees that."
        ),
        {
            "A block that nobody holds and that is not free": (
                "That is a leak, and exactly what the check counts."
            ),
            "A block that was freed twice": (
                "A double free is refused at once, and would show up in the counts."
            ),
        },
    ),
]
