"""Five questions on notebook 00: a first run"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "Four requests run together in one engine. What does one step of the engine do?",
        "One pass of the model over tokens of all four requests",
        (
            "The plan of a step takes some tokens of every running request; they go through the "
            "model as one flat batch."
        ),
        {
            "One pass of the model for each request, one after the other": (
                "That is how the requests would run alone. The weights would then be read four "
                "times for the same four tokens."
            ),
            "It finishes one request and begins the next": (
                "No request is finished before others get a turn: each step advances all that run."
            ),
        },
    ),
    Question(
        "What does the scheduler hand to the model runner?",
        "A plan, as plain data: which tokens, in which blocks",
        (
            "The plan says how many tokens of which request are computed, and is all that crosses "
            "between the two. It could be printed, stored, or sent to another process."
        ),
        {
            "The text of the prompts, as the user typed it": (
                "Text became token ids before the scheduler saw it; the scheduler never looks at "
                "what a token is."
            ),
            "The logits that the previous step has computed": (
                "Logits stay with the runner and the sampler. The scheduler gets back only the "
                "sampled token ids."
            ),
        },
    ),
    Question(
        "In a timeline, what does a dark cell with the number 12 mean?",
        "12 prompt tokens were computed in that step",
        (
            "Prefill chunks are dark and carry their number of tokens; decodes are light, one "
            "token each."
        ),
        {
            "The request has waited for 12 steps so far": (
                "Waiting is drawn hatched, one cell a step."
            ),
            "12 requests took part in that step": (
                "A row is one request. How many run in a step is the number of rows with a cell "
                "in its column."
            ),
        },
    ),
    Question(
        (
            "A request has 37 prompt tokens and blocks hold 16 tokens. How many blocks does the "
            "prompt take?"
        ),
        "3",
        (
            "Two full blocks hold 32 tokens and a third one the last 5. A block is held whole, "
            "whatever is in it."
        ),
        {
            "2": "Two blocks have room for 32 tokens; the last 5 need a place, too.",
            "37": "That would be blocks of one token. A block has 16 slots.",
        },
    ),
    Question(
        "Why is `chat` with the same words not the same as `generate`?",
        "The model sees other tokens: those of a chat template",
        (
            "It is the format that the model was trained on, with marks for who speaks and where "
            "an answer begins. Without them a chat model continues the text instead of answering "
            "it."
        ),
        {
            "`chat` asks another model, one trained for conversations": (
                "Both call the same model with the same weights."
            ),
            "`chat` remembers what was said in earlier calls": (
                "Nothing is remembered: a conversation is sent whole each time. Only the prefix "
                "cache makes that cheap."
            ),
        },
    ),
]
