"""Five questions on notebook A2: measuring a machine"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "Why is the machine's own roof measured first?",
        "A share needs the roof of this very machine",
        (
            "Data sheets tell peaks that this machine may never reach, and threads and neighbours "
            "change them."
        ),
        {
            "The caches have to be warm for all the rest": (
                "Measurements repeat until they are stable; the roof itself is a result."
            ),
            "The data sheets of processors are secret": (
                "They are public, and promise a little too much."
            ),
        },
    ),
    Question(
        "A sum over 1 MB seems to beat the bandwidth of memory. Why?",
        "It fits into a cache of the CPU",
        "Its bytes do not come from memory. A CPU has a second, steeper roof for its caches.",
        {
            "The clock is wrong by some factor": (
                "It may be right: the bytes are only counted against the wrong roof."
            ),
            "A sum needs no bytes from memory": "Every number must be read from somewhere.",
        },
    ),
    Question(
        (
            "A decode step reaches a small fraction of the roof. What is the first suspect at "
            "batch 1?"
        ),
        "The price of starting a hundred operations",
        (
            "Each has a price before it does anything. The smaller the batch and the faster the "
            "machine, the larger is this share."
        ),
        {
            "Reading the weights twice in every step": "They are read once a step. Count them.",
            "A model that is too large for this machine": (
                "A larger model spends a smaller share on starting things."
            ),
        },
    ),
    Question(
        "Why does the engine pack a matrix when the model is loaded?",
        "Each small product would lay it out anew",
        "For a few rows that costs a good part of the product's time, or more than it.",
        {
            "The packed matrix takes less memory": "The packed matrix is as large.",
            "The results are more exact that way": "The numbers are the same up to rounding.",
        },
    ),
    Question(
        "Two runs of a measurement differ by a third. What do you report?",
        "The spread, and that the machine was not quiet",
        "Then repeat when it is. A number without its spread cannot be compared with another.",
        {
            "The better one, since the other was disturbed": "It may be the accident.",
            "The mean, since it is fair to both of them": (
                "The mean of a quiet and a disturbed run describes neither."
            ),
        },
    ),
]
