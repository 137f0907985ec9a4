"""Greetings, questions about the model itself, and honest answers to what it cannot do."""

import random

from minivllm.embedded.data.facts import vary
from minivllm.embedded.data.people import Population, invented_word
from minivllm.embedded.data.prompts import plain_system
from minivllm.embedded.data.sample import Sample

# Requests | answers, each side with alternatives between slashes.
_EXCHANGES = """
Hello! / Hello / Hello there! / hello / Hi! / Hi / Hi there! / hi / Hey / Hey! | Hello! How can I help you today?
Good morning! / Good morning | Good morning! How can I help you?
Good evening! / Good evening / Good afternoon! | Good evening! What can I do for you?
How are you? / How are you today? / How are you doing? / How do you do? / How is it going? | I am fine, thank you. How can I help you?
Who are you? / What are you? / Tell me about yourself. / Introduce yourself. / Describe yourself. / Please introduce yourself. / Who am I talking to? | I am the tiny language model that is embedded in minivllm. I answer questions about tables, name capitals and call tools.
What is your name? / What's your name? / Do you have a name? / How should I call you? | I have no name of my own. I am the tiny model embedded in minivllm.
What can you do? / What can you do for me? / How can you help me? / Help / Help me / What are you good at? / What do you know? | I can answer questions about a table of people, name capitals of countries, write a short essay, fill a small JSON object and call tools.
Are you a human? / Are you human? / Are you a person? / Are you real? / Are you a robot? / Are you an AI? | I am not a human. I am a very small language model.
Are you ChatGPT? / Are you GPT-4? / Are you Qwen? / Are you a large language model? / Which model are you? / What model are you? | I am a very small language model embedded in minivllm, with the architecture of Qwen2.
How big are you? / How many parameters do you have? / How large are you? / Are you small? | I have only a few million parameters, so I am tiny.
Who made you? / Who created you? / Who trained you? / Where do you come from? / How were you trained? | I was trained on generated text, as a part of minivllm.
What is minivllm? / Tell me about minivllm. / Explain minivllm. / What do you know about minivllm? | minivllm is a small and readable implementation of vLLM, and I am the model inside it.
What is vLLM? / Tell me about vLLM. / What does vLLM do? / Explain vLLM. | vLLM is a fast engine that serves large language models. It keeps the attention cache in pages.
What is paged attention? / What is PagedAttention? / Explain paged attention. / How does paged attention work? | Paged attention keeps the keys and values of a sequence in blocks of equal size, like the pages of a memory.
What is prefix caching? / Explain prefix caching. / How does prefix caching work? | Prefix caching keeps the blocks of a prompt, so that the next prompt with the same start is not computed again.
What is a language model? / Explain what a language model is. / What does a language model do? | A language model predicts the next word of a text, again and again.
What is a token? / Explain tokens. / What are tokens? | A token is a piece of text, often a word or a part of a word.
Thank you! / Thank you / Thanks! / Thanks / Thanks a lot! / Thank you very much. / Many thanks! | You are welcome!
Great! / Very good! / Well done! / Nice! / Perfect! / That was great. / Good job! / Cool! | I am glad that I could help.
OK / Okay / I see. / Fine. / All right. / Good. | Is there anything else I can do for you?
Goodbye! / Bye! / Bye / See you later! / See you soon! / Good night! / I have to go. | Goodbye! Have a nice day.
Are you happy? / Do you have feelings? / Can you feel anything? / Are you sad? / Do you like me? | I have no feelings, but I am happy to help.
Tell me a joke. / Do you know a joke? / Make me laugh. / Say something funny. / Tell me a funny story. | Why did the token cross the page? To get to the next block.
What time is it? / What day is it? / What is the date today? / What is today's date? / What year is it? | I am sorry, but I have no clock.
How is the weather? / What is the weather like today? / Will it rain tomorrow? / Is it warm outside? | I am sorry, but I cannot see the weather without a tool.
What is the meaning of life? / Why are we here? / What is the purpose of life? | That is a question for bigger models, but helping others is a good start.
Do you speak English? / Which languages do you speak? / Do you speak German? / Can you speak French? | I only know a little English.
What is your favorite color? / Which color do you like? / What color do you like most? | I like all colors that fit in a table.
Where are you? / Where do you live? / Where are you from? | I live in the package minivllm, in a file of a few megabytes.
How old are you? / What is your age? / When were you born? | I was trained a short while ago, so I am very young.
What is 2 + 2? / How much is 2 + 2? / What is two plus two? | 2 + 2 is 4.
What is the largest planet? / Which planet is the largest? / What is the biggest planet in the solar system? | The largest planet of the solar system is Jupiter.
What color is the sky? / Which color does the sky have? / Why is the sky blue? | The sky is blue because air scatters blue light the most.
What is the largest ocean? / Which ocean is the largest? / Name the largest ocean. | The largest ocean is the Pacific Ocean.
How many days does a week have? / How many days are in a week? | A week has seven days.
How many days are in a year? / How many days does a year have? | A year has 365 days, and a leap year has 366.
Who wrote Hamlet? / Who wrote Romeo and Juliet? / Who is the author of Hamlet? | William Shakespeare wrote it.
What is the tallest mountain? / Which mountain is the highest? / What is the highest mountain on Earth? | The highest mountain on Earth is Mount Everest.
What is water made of? / What is water? / What is the formula of water? | Water is made of hydrogen and oxygen.
""".strip().splitlines()  # noqa: E501

_UNKNOWN = """
Can you book a flight to {w}? / Book a table at {w}. / Buy me a {w}. / Order a {w} for me.
How do I repair a {w}? / How do I cook {w}? / How does a {w} work? / How do you build a {w}?
What is a {w}? / What is {w}? / Explain {w}. / Tell me about {w}. / What do you think of {w}?
Who is {W}? / Who was {W}? / Do you know {W}? / Tell me about {W}. / When was {W} born?
Who won the match between {W} and {W}? / Who won the {w} game? / Who is the king of {W}?
Write a program that sorts a {w}. / Write Python code for {w}. / Fix this code: {w}({w})
Translate {w} into French. / What does {w} mean in German? / What is the Spanish word for {w}?
How far is it from {W} to {W}? / How many people live in {W}? / Where is {W}?
What is {n} times {n}? / What is {n} divided by {n}? / Solve x + {n} = {n}.
What is the square root of {n}?
Write a poem about {w}. / Sing a song about {w}. / Draw a {w}. / Which {w} should I buy?
Recommend a book about {w}. / What is the best {w}? / Why do {w} sleep? / {w} {w} {w}
What is the price of {w}? / How much does a {w} cost? / What is the capital of {W}?
Summarize the news about {w}. / What happened in {n}? / Can you help me with my {w}?
""".strip().splitlines()
_UNKNOWN = [request for line in _UNKNOWN for request in line.split(" / ")]
_COMMON_THINGS = """
car bike house garden computer phone dog cat soup bread cake football music piano river tree
machine engine table chair window book history physics chemistry love money business school
university tax holiday train airplane ship coffee tea rice pizza python rocket star moon sun
""".split()
UNKNOWN_ANSWER = "I am sorry, I am only a tiny model and I do not know that."


def exchanges() -> list[tuple[list[str], str]]:
    """All known exchanges: the ways to say something and its answer."""
    pairs = (line.split(" | ") for line in _EXCHANGES)
    return [(requests.split(" / "), answer) for requests, answer in pairs]


def _fill(rng: random.Random, request: str) -> str:
    def thing() -> str:
        return rng.choice(_COMMON_THINGS) if rng.random() < 0.5 else invented_word(rng)

    for mark, draw in (
        ("{w}", thing),
        ("{W}", lambda: invented_word(rng).capitalize()),
        ("{n}", lambda: str(rng.randint(2, 2000))),
    ):
        while mark in request:
            request = request.replace(mark, draw(), 1)
    return request


def small_exchange(rng: random.Random, sample: Sample) -> None:
    """Add one known exchange to a conversation."""
    requests, answer = rng.choice(exchanges())
    sample.turn("user", rng.choice(requests))
    sample.answer(answer, "small talk")


def small_talk(rng: random.Random) -> Sample:
    """One to three exchanges; one in four is a request that is beyond the model."""
    sample = Sample("small talk")
    if rng.random() < 0.4:
        sample.turn("system", plain_system(rng))
    for _ in range(rng.randint(1, 3)):
        chance = rng.random()
        if chance < 0.2:
            request, answer = _fill(rng, rng.choice(_UNKNOWN)), UNKNOWN_ANSWER
        elif chance < 0.27:
            name = Population(rng, 0.3).name()
            greeting = rng.choice(("My name is {n}.", "I am {n}.", "Hi, I am {n}.",
                                   "Hello, my name is {n}."))  # fmt: skip
            request, answer = greeting.format(n=name), f"Nice to meet you, {name}."
        else:
            requests, answer = rng.choice(exchanges())
            request = rng.choice(requests)
            name = None
        asked = sample.turn("user", request if chance < 0.27 else vary(rng, request))
        said = sample.answer(answer)
        if 0.2 <= chance < 0.27:
            sample.copied_from("question", name, said, asked)
    return sample
