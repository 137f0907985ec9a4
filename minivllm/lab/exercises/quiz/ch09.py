"""Five questions on notebook 09: paged attention"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "What turns a row of K and V in scattered blocks into ordinary attention?",
        "The block table with the slots",
        "With the slots known, the formula is the same, and so is the result.",
        {
            "Sorting the blocks by position": (
                "Nothing is moved. Moving is what paged memory avoids."
            ),
            "A special softmax over blocks": (
                "The softmax is the same as ever; only the addresses differ."
            ),
        },
    ),
    Question(
        (
            "A batch holds a decode and a chunk of 5 tokens of another request. How many rows of "
            "queries does attention have?"
        ),
        "6",
        "One row a new token: 1 and 5. Requests are laid one after the other, without padding.",
        {
            "2": "A row is a token, not a request.",
            "10": "That is a padded batch of 2 by 5. The flat batch has no padding.",
        },
    ),
    Question(
        "A chunk of 3 tokens follows 7 cached ones. How many keys does its first row see?",
        "8",
        "The 7 cached ones and itself. The second row sees 9, the third 10.",
        {
            "10": "The last row does. The mask keeps later tokens from earlier rows.",
            "1": "That would be a prompt that begins here; this one has 7 tokens before it.",
        },
    ),
    Question(
        "What is wrong with gathering K and V before each attention?",
        "K and V are moved three times instead of once",
        (
            "They are read, written and read again. A decode is limited by memory, so this is "
            "what costs."
        ),
        {
            "The result is less exact than without gathering": "The numbers are the same.",
            "It needs a second block table for the copies": "It uses the same one.",
        },
    ),
    Question(
        "A masked slot holds a NaN that somebody left there. Does it matter that it is masked?",
        "Yes: 0 times NaN is NaN",
        (
            "Its V would be multiplied by a weight of 0. What is masked must not be read, or must "
            "be replaced before it is multiplied."
        ),
        {
            "No, the mask removes it": (
                "The mask sets the weight to zero. It does not remove the product."
            ),
            "No, NaN is ignored in sums": "A NaN makes every sum that it touches a NaN.",
        },
    ),
]
