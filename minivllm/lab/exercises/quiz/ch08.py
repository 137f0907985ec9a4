"""Five questions on notebook 08: prefix caching"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        (
            "Block size 4. A prompt of exactly 12 tokens was served before, and comes again. How "
            "many tokens are found in the cache?"
        ),
        "8",
        (
            "Three blocks are known, but one token must be computed for its logits, and blocks "
            "are found whole."
        ),
        {
            "12": (
                "Then nothing would be left to compute, and there would be no logits for the "
                "first token of the answer."
            ),
            "11": (
                "One token must be computed, but hits are whole blocks: 8 is the most that is "
                "below 12."
            ),
        },
    ),
    Question(
        "What is the hash of a block made of?",
        "The previous block's hash, and its token ids",
        "So equal hashes mean equal beginnings, all the way to the first token.",
        {
            "Its own token ids, in their order": (
                "The same words after another beginning have other keys and values. The hit rate "
                "would be better, and the answers wrong."
            ),
            "The K and V that were computed for its tokens": (
                "They would have to be computed first, and that is what is to be saved."
            ),
        },
    ),
    Question(
        "What happens to the cached blocks of a request that ends?",
        "They are free, and keep their hashes until they are given out again",
        "The cache lives in free memory; nothing is set aside for it.",
        {
            "They stay reserved for the next request with that prompt": (
                "Nobody knows if it comes. Any request may take them when it needs room."
            ),
            "They are erased": "Erasing costs time and gains nothing. Eviction is lazy.",
        },
    ),
    Question(
        "Of one finished request, which cached block is evicted first?",
        "The last one",
        "The beginning is of use without the end; the end is found only through the beginning.",
        {
            "The first one": "That would make all later ones of the chain impossible to find.",
            "A random one": (
                "The free queue has an order: least recently used first, and tails before heads."
            ),
        },
    ),
    Question(
        "Why does a server with several customers want a cache_salt?",
        "A fast first token tells what others have sent",
        (
            "It reveals that somebody has sent the same prompt before: a timing side channel. "
            "Only requests with an equal salt share blocks."
        ),
        {
            "Without it hashes of different prompts collide": (
                "A cryptographic hash takes care of that."
            ),
            "It makes the lookup of a block faster": (
                "It changes the first block's hash and nothing else."
            ),
        },
    ),
]
