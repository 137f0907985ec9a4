"""Five questions on notebook 22: metrics and honest benchmarks"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "The mean TTFT of a server is 200 ms. What does a typical user wait?",
        "That cannot be said",
        "Ninety users may wait 20 ms and ten 1,820 ms: nobody waits 200. Ask for percentiles.",
        {
            "About 200 ms": "That needs a distribution with one hump. Under load there is a tail.",
            "Less than 200 ms, in half of all cases": (
                "That would be the median. A tail pulls the mean far above it."
            ),
        },
    ),
    Question(
        "TPOT and ITL of one run differ in the mean. Why?",
        "TPOT counts each request once, ITL each gap",
        "A long answer has many gaps, and weighs more in ITL than in TPOT.",
        {
            "ITL includes the time to the first token": "Neither does: that time is the TTFT.",
            "TPOT is measured at the server, ITL at the client": (
                "Both come from the client's timestamps of the same events."
            ),
        },
    ),
    Question(
        "Two servers report a p99 of 1 s and of 3 s. What is the p99 of both together?",
        "Add up their buckets, and look it up there",
        "Counts can be added. From the two numbers alone nobody can tell.",
        {
            "2 s, the mean of the two": (
                "Percentiles cannot be averaged, not even where both had equally many requests."
            ),
            "3 s, the larger of the two": (
                "It is at most that, and less if the slow one had few requests."
            ),
        },
    ),
    Question(
        "A client sends its next request when the last one is answered. What does it hide?",
        "The queue: a slow server is simply asked less often",
        "Users do not wait for each other. Send at times fixed before, whatever the answers do.",
        {
            "Nothing: each request's time is measured all the same": (
                "Those that would have come meanwhile were never sent, so their waits are missing."
            ),
            "The time to the first token, which it cannot see": (
                "It sees that of every request it sends. It sends too few."
            ),
        },
    ),
    Question(
        "10 requests come in a second, and each stays for 3 s. How many are there at once?",
        "30, whatever the server and the distribution are like",
        "Little's law: what is in a system is the rate times the time. It asks for nothing else.",
        {
            "10, one second's worth": "Those of the two seconds before are still there.",
            "3, one for each second of an answer": "So it would be at one request a second.",
        },
    ),
]
