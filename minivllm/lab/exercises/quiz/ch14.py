"""Five questions on notebook 14: speculative decoding"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "The proposer guesses nonsense in every step. What happens to a greedy text?",
        "Nothing: it is the same, one token a step",
        "Every token that counts is the target's own choice. Wrong drafts only cost arithmetic.",
        {
            "It contains the first token of each wrong guess": (
                "A draft counts only where the target says the same token."
            ),
            "The request fails": "Even with all drafts rejected a step gains the target's token.",
        },
    ),
    Question(
        "Four drafts are verified: right, right, wrong, right. How many tokens does the step gain?",
        "Three",
        "Two drafts, and the target's own token in place of the wrong one.",
        {
            "Two: those before the wrong one": (
                "The wrong draft's row saw right tokens only, so the target's choice counts."
            ),
            "Four: one was only in the wrong place": (
                "The last one is right by chance: its row saw a token that is not in the text."
            ),
        },
    ),
    Question(
        "What does the engine do with the K and V of a rejected draft?",
        "It lowers what is computed; the next step overwrites them",
        "Attention never looks beyond the computed tokens, so nothing has to be erased.",
        {
            "It frees their blocks at once": (
                "The blocks stay in the table: the text will need them soon."
            ),
            "It sets them to zero": "Nobody reads them. Zeros would be read as K and V, too.",
        },
    ),
    Question(
        "A drawn draft is rejected with the rule of p and q. From what is the token drawn instead?",
        "From max(p - q, 0), divided by its sum",
        "What the draft model says too seldom. Together with the accepted drafts that makes p.",
        {
            "From p, the target's own distribution": (
                "Then tokens that are likely in both come too often: they get two chances."
            ),
            "From q once more": "The draft model cannot make up for what it says too seldom.",
        },
    ),
    Question(
        "On a busy server long drafts make answers slower. Why?",
        "Steps are bound by arithmetic, and rejected drafts cost as much as tokens",
        "Drafts are nearly free only while a step waits for weights, with few sequences in it.",
        {
            "Fewer drafts are accepted in large batches": (
                "Acceptance depends on the text and the proposer, not on the neighbours."
            ),
            "Each draft needs a request of its own": "Drafts are further tokens of one sequence.",
        },
    ),
]
