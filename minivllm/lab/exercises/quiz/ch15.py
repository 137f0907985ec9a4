"""Five questions on notebook 15: structured outputs"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "Which tokens does the mask of a regular expression allow?",
        "Those whose bytes lead on in the automaton",
        (
            "From the state now, byte by byte, to a state from which a match can still be reached. "
            "The end-of-sequence token may come where the text matches already."
        ),
        {
            "Those that match the regular expression": (
                "A token is only a piece. What counts is the text so far with the token behind it."
            ),
            "Those with which the tokenizer would spell the text": (
                "There are many spellings of a text, and all of them are allowed."
            ),
        },
    ),
    Question(
        "Why do the automaton's edges read bytes?",
        "A token may end within a character",
        "A rare character is several tokens of a byte or two, and each of them needs a mask.",
        {
            "Bytes are faster to compare than characters": (
                "The speed is nearly the same. What matters is what a token can hold."
            ),
            "Regular expressions are defined over bytes": (
                "They are defined over characters; each of these becomes a few bytes here."
            ),
        },
    ),
    Question(
        "A request has a JSON schema, and temperature 1.8. What is certain of its text?",
        "It fits the schema, unless it was cut at max_tokens",
        "A mask cannot make a text end in time. Look for the finish_reason stop.",
        {
            "It fits the schema and says what the prompt says": (
                "The form is all that is guaranteed. The words in it are drawn as always."
            ),
            "Nothing, since the temperature comes after the mask": (
                "A logit of minus infinity stays one, whatever it is divided by."
            ),
        },
    ),
    Question(
        "Where in a step does the mask meet the logits?",
        "Before the sampler looks at them",
        "So top_p, top_k and the logprobs that are reported see only what may come.",
        {
            "After the filters, just before the draw": (
                "Then top_k could keep only tokens that the mask forbids, and nothing were left."
            ),
            "After the draw: a forbidden token is drawn again": (
                "That could take for ever where the model gives the allowed ones little."
            ),
        },
    ),
    Question(
        "Why does the engine hand forced tokens to itself as drafts?",
        "One step then computes many of them",
        "Drafts are verified together in one step, and a token that is forced always passes.",
        {
            "The sampler might otherwise draw another one": (
                "It cannot: the mask leaves only this one. It would take a step for each."
            ),
            "They need no K and V": "Every token of a text needs K and V, however it came about.",
        },
    ),
]
