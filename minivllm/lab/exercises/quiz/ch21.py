"""Five questions on notebook 21: serving"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "What may another thread do with the engine while a step runs?",
        "Put a message in its queue",
        "The engine belongs to one thread. It takes messages between two steps.",
        {
            "Add a request, if it holds a lock": (
                "Then each step would have to be locked, too, and everybody would wait for it."
            ),
            "Anything: Python has a global interpreter lock": (
                "It keeps single bytecodes apart, not a whole step: books could be half written."
            ),
        },
    ),
    Question(
        "Eight streams run. How often does a step wake the event loop?",
        "Once",
        "A step's outputs travel as one batch. A wake-up a token costs more than the token.",
        {
            "Eight times, once for each token": (
                "That is what a queue for each stream, filled by the engine's thread, would do."
            ),
            "Not at all: the loop polls the engine": (
                "Polling makes every token late by half of the interval, or the loop busy."
            ),
        },
    ),
    Question(
        "Without drafts, a client reads an event with two tokens. What has happened?",
        "It, or the server's task for it, was late by a step",
        "What is new is joined to what has not been read yet. Nothing is lost, nothing piles up.",
        {
            "The engine has skipped an event, and a token is lost": (
                "The text is whole: two deltas were joined."
            ),
            "The engine always sends tokens in pairs": (
                "It makes one output a step. How many are joined depends on the reader alone."
            ),
        },
    ),
    Question(
        "A client hangs up while its request runs. When are its blocks free?",
        "Before the next step",
        "The server's task is cancelled, its `finally` sends an abort, the engine reads it then.",
        {
            "When its answer would have ended": (
                "So it is in a server that does not notice: it computes for nobody until then."
            ),
            "In the middle of the running step, at once": (
                "A step is never disturbed: its K and V are being written."
            ),
        },
    ),
    Question(
        "Why does vLLM run its engine in a process of its own?",
        "Python's interpreter lock: HTTP and scheduling would share one core",
        "Tokenizing, JSON and sockets of many streams take time from the thread that plans steps.",
        {
            "A process can use the GPU, a thread cannot": "Both can. The lock is the reason.",
            "Messages to a process are cheaper than messages to a thread": (
                "They cost more: everything is serialized. What is gained is a core."
            ),
        },
    ),
]
