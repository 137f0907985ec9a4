"""Five questions on notebook 02: contiguous memory"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        (
            "A slab has 40 slots; the prompt has 10 tokens, and the answer will end after 11. "
            "While the answer is at its fifth token, which slots are internal waste?"
        ),
        "Those that the request holds and will never fill",
        ("Nobody knows yet that the answer will end early, so these slots are lost until it does."),
        {
            "Those that the request will fill in later steps": (
                "They are reserved: not used yet, but they will be."
            ),
            "Those between two slabs that are too small for anybody": (
                "That is external waste, outside of every slab."
            ),
        },
    ),
    Question(
        "18 slots are free, and a request for 12 is refused. How can that be?",
        "The free slots are in two or more pieces, none of 12",
        "This is external waste, or fragmentation: enough memory in the wrong places.",
        {
            "Six slots are kept back for emergencies": (
                "No allocator here keeps anything back; the slab just has to be in one piece."
            ),
            "A slab needs its length twice, for K and for V": (
                "A slot holds both, K and V of one token."
            ),
        },
    ),
    Question(
        (
            "The allocator knows the exact length of each answer. Why is the memory still poorly "
            "used?"
        ),
        "The whole slab is held from the first token on",
        (
            "A part of it is filled much later: a quarter to a third of the memory is reserved for "
            "tokens to come. Knowing the length does not change that."
        ),
        {
            "Knowing the length does not help against long prompts": (
                "A prompt's slots are filled at once; they are not the waste."
            ),
            "The knowledge comes too late to be used": (
                "`exact` knows it at admission. It is an oracle, better than any real server."
            ),
        },
    ),
    Question(
        "What does the buddy allocator trade?",
        "It is quick, and rounds up to a power of two",
        (
            "Splitting and merging are quick because there are few sizes. Up to nearly half of a "
            "slab may be rounding."
        ),
        {
            "It is slow, and never rounds a size up": (
                "Rounding up to a power of two is its whole principle."
            ),
            "Nothing, it is only a faster search": (
                "The search is faster because the sizes are few, and few sizes mean rounding."
            ),
        },
    ),
    Question(
        "With room for about thirty chats, only seven run. What mends that?",
        "Giving up memory in one piece",
        (
            "Blocks are taken when a token needs them, so nothing is reserved and no hole is too "
            "small."
        ),
        {
            "A better allocator of slabs": (
                "First fit with exact lengths still leaves a third of the memory waiting for "
                "tokens that are not there yet."
            ),
            "Moving slabs together from time to time": (
                "Compaction mends the holes only, and copies all K and V that it moves. Reserved "
                "and internal waste stay."
            ),
        },
    ),
]
