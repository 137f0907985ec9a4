"""Five questions on notebook 12: sampling"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "A token has a probability of 0.00001 in each step. Why is it worth cutting the tail?",
        "All rare tokens together are not rare",
        (
            "Thousands of them together come often, and one spoils the rest of a text. A text is "
            "a chain: what follows a rare token is conditioned on it."
        ),
        {
            "It makes the draw itself faster": ("Filters cost time. They are there for the texts."),
            "It is not: such tokens never come": (
                "One alone never comes. In the notebook, 5 of 32 texts had one of the tail."
            ),
        },
    ),
    Question(
        "What does top_p = 0.9 keep?",
        "The fewest likeliest tokens that reach 0.9",
        (
            "Those whose probabilities sum to at least 0.9: few where the model is sure, many "
            "where it is not."
        ),
        {
            "90 % of the tokens in the vocabulary": (
                "The number of tokens differs from step to step."
            ),
            "All tokens with a probability above 0.9": "There is often none.",
        },
    ),
    Question(
        "A request has seed=7. Does its text change with the other requests of the batch?",
        "No: its draws come from a stream of its own",
        "The draws depend on the sequence and its position only, also after a preemption.",
        {
            "Yes, the batch shares one generator": (
                "Then strangers would change your text. Each seeded sequence has its own."
            ),
            "Only if the batch is large": "The size does not matter to the draws.",
        },
    ),
    Question(
        "How does vLLM 0.32's default GPU sampler draw for a seeded request?",
        "By Gumbel noise, hashed from seed and position",
        (
            "It takes the largest of logits plus noise. A draw without state survives a "
            "preemption for free."
        ),
        {
            "With a torch.Generator for each seeded request": (
                "The old runner did. The new one keeps no generator."
            ),
            "With one generator for all requests of the server": (
                "Then a seed could promise nothing."
            ),
        },
    ),
    Question(
        "Why is streamed text held back although its tokens are known?",
        "A stop string may still cut it",
        "Or an unfinished character may change. What a reader has seen cannot be taken back.",
        {
            "To send it in larger packets": (
                "That would be a matter of the network, not of correctness."
            ),
            "The tokenizer is slower than the model": "Decoding a token takes microseconds.",
        },
    ),
]
