"""Five questions on notebook 01: the KV cache"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "What is stored in the KV cache for a token?",
        "Its keys and values, in every layer",
        (
            "Later tokens need exactly these: their queries are compared with its keys and take a "
            "mean of its values."
        ),
        {
            "Its queries, keys and values": (
                "A query is used once, for the token's own row, and by nobody after that."
            ),
            "The logits that the model gave after it": (
                "Logits are needed for one draw. They would be far larger, and no later token "
                "reads them."
            ),
        },
    ),
    Question(
        "Why may K and V of a token be kept while later tokens come?",
        "A token never attends to later tokens",
        (
            "So its K and V do not depend on them. This is what the causal mask is for. Without "
            "it, every new token would change all old ones."
        ),
        {
            "They change only a little, and the error is accepted": (
                "They do not change at all. With and without the cache the answers are equal up "
                "to rounding."
            ),
            "The model is trained to tolerate old values": (
                "Nothing in training knows of the cache. It is the same computation, done once."
            ),
        },
    ),
    Question(
        (
            "A model has 32 layers, 8 KV heads of size 128, in bfloat16. How many bytes does a "
            "token leave in the cache?"
        ),
        "2 * 32 * 8 * 128 * 2 = 131,072",
        "K and V, layers, KV heads, numbers in a head, two bytes each: 128 KiB.",
        {
            "32 * 8 * 128 * 2 = 65,536": "That is K alone. V takes as much again.",
            "2 * 32 * 32 * 128 * 2 = 524,288": (
                "That counts 32 query heads. Only KV heads are stored; grouped heads are what "
                "makes the cache smaller."
            ),
        },
    ),
    Question(
        "Why does a decode step load a machine so differently from a prefill?",
        "It reads all weights for one token per request",
        (
            "So memory is its limit. A prefill reads as much and uses each weight for many "
            "tokens: arithmetic is its limit."
        ),
        {
            "It uses other weights than a prefill does": (
                "Every token goes through the same matrices."
            ),
            "Its attention is quadratic in the length": (
                "It is the prefill whose attention pairs grow with the square of its length. One "
                "decode row looks once at each earlier token."
            ),
        },
    ),
    Question(
        (
            "What happens if two slots of the cache, with their places in the block table, are "
            "exchanged?"
        ),
        "Nothing: a key carries its own position",
        (
            "Attention is a weighted sum, and the order of a sum does not matter, so K and V may "
            "lie anywhere. Paged memory rests on this."
        ),
        {
            "The answer changes, since the order of tokens has changed": (
                "The position was put into the key when it was computed, by the rotary embedding. "
                "The place in memory says nothing."
            ),
            "The model raises an error, since a check of the order fails": (
                "Nothing checks an order, because nothing needs one."
            ),
        },
    ),
]
