"""Five questions on notebook 04b: beam search"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "A beam search of width 3 keeps three beginnings. What does it do in each step?",
        "It extends all three, and keeps the three best of all",
        "Two of the three may come from one parent, and then another parent has none.",
        {
            "It keeps the best continuation of each of the three": (
                "Then no parent could have two survivors, and it would be three separate greedy "
                "searches."
            ),
            "It draws three tokens at random, one for each of them": (
                "Nothing is drawn: candidates are ranked by the sum of log probabilities."
            ),
        },
    ),
    Question(
        (
            "A parent has two survivors, and their next token is not the first one of a block. "
            "What does the memory do?"
        ),
        "It forks the table; one of the two copies the last block",
        "All full blocks stay shared.",
        {
            "It copies all blocks of the parent for the second survivor": (
                "That is the price without block tables."
            ),
            "Nothing: both go on in the same block": (
                "They would write different tokens into the same slot."
            ),
        },
    ),
    Question(
        "What happens to the blocks of a beam that is dropped?",
        "Those that no other beam holds are free at once",
        "The shared beginning stays, since others still stand on it.",
        {
            "They stay until the search ends, in case it returns": (
                "That would keep memory for texts that nobody wants."
            ),
            "They are given to the beam that takes its place": (
                "The new beam shares what it has in common with its own parent, not with the "
                "dropped one."
            ),
        },
    ),
    Question(
        "Does beam search always find the likeliest text?",
        "No, its beginning may have been dropped",
        (
            "It was not among the best when it was short. The width is a compromise. Only the "
            "search through all texts is sure."
        ),
        {
            "Yes, it compares all texts of this length": (
                "It compares a few continuations of a few beginnings."
            ),
            "Yes, if the width is at least 2": (
                "A larger width misses less. No width short of everything is sure."
            ),
        },
    ),
    Question(
        "Why do beams save more memory than samples of the same number?",
        "They share much of the answer as well",
        (
            "Survivors often have a recent common ancestor. Samples share the prompt only; each "
            "answer is its own from the first token."
        ),
        {
            "They are shorter than samples are": (
                "They are as long as the samples that they are compared with."
            ),
            "They need no blocks of their own at all": (
                "Each has its own last block once it has written."
            ),
        },
    ),
]
