"""Plain English to continue, and short essays: built from sentence patterns written by hand."""

import random

from minivllm.embedded.data import words
from minivllm.embedded.data.facts import vary
from minivllm.embedded.data.people import invented_word
from minivllm.embedded.data.prompts import plain_system
from minivllm.embedded.data.sample import Sample

# Texts to continue. {name}, {job}, {city}, {country}, {thing}, {topic} are drawn anew each time;
# [a/b/c] is a choice.
_TEXTS = """
Hello, my name is {name}[ and I am/. I am] a {job} from {city}. I [like/love] to [read books/play the piano/cook for my friends/walk in the forest/travel to other countries] and I [have two children/have a small dog/live near the river/work in a small office]. [Nice to meet you./It is nice to meet you./I hope to hear from you soon.]
Hello, my name is {name}. I [live/work] in {city}, [where/and] I work as a {job}. In my free time I like to [play football/paint/listen to music/learn new languages/ride my bike].
My name is {name} and I live in {city}. I have been a {job} for [two/five/ten/twenty] years, and I still like my work.
The president of the United States is the head of state and the head of the government. The president [lives in the White House in Washington/is elected every four years/signs the laws that the Congress has passed].
The president of the United States is [elected every four years/elected by the people for four years]. He or she [works in the White House/lives in the White House] and [leads the government/leads the army and the government].
The president of the United States is the leader of the country. The [office/White House] is in Washington, and the [election/vote] is held every four years.
The president of {country} is [on a visit to/going to visit/coming back from] {city} this week. [The two countries want to work together./They will talk about trade and peace.]
The future of AI is [bright/open/in our hands/hard to predict/full of promise]. [Machines will help people with work that is dull or hard/Small models will run on every phone/Better models will help doctors, teachers and engineers], but [people must decide how to use them/we have to use them with care/the important decisions should stay with people].
The future of AI is [an exciting topic/a question for all of us]. In the next years, [computers will learn to understand language better/new tools will change how we work/models will become smaller and faster], and [we will all have to learn/many people will find new jobs/schools will teach with them].
The future of [work/energy/medicine/education/transport/science] is [bright/open/in our hands/hard to predict]. [New ideas/New machines/Young people] will [change/shape] it, and [everyone can help/there is much to do].
Artificial intelligence is [a part of computer science/the art of teaching machines]. It [helps people to write, to plan and to learn/finds patterns in large amounts of data/is used in cars, phones and hospitals].
Machine learning is a way to [teach computers with examples/find rules in data]. Instead of writing every rule by hand, people [show the machine many examples/let the machine find the rules].
Once upon a time, there was a [little/young/old/brave/clever] [girl/boy/fox/bear/king/farmer] who lived in a [small house/dark forest/quiet village/big castle]. One day, [she/he] [found a golden key/met a stranger on the road/heard a strange song/went to look for a treasure]. [In the end, everything was well again./And they lived happily ever after./From that day on, nobody was afraid anymore.]
Once upon a time, in a [small/quiet/distant] village, there lived a {job} who [had a secret/could talk to animals/dreamed of the sea]. Every [morning/evening], [people came to listen/the children came to ask for a story].
The weather today is [sunny and warm/cold and windy/cloudy with some rain]. [We can go for a walk in the park./It is better to stay at home and read a book./Do not forget your coat.]
The best way to learn [a language/to play the piano/mathematics/to cook] is to [practice every day/start with small steps/have a good teacher]. [It takes time, but it is worth it./Nobody learns it in a day./Do not be afraid of mistakes.]
In the morning, I [drink a cup of coffee/read the newspaper/go for a run] and then I [go to work/take the bus to the office/start to write]. In the evening, I [cook dinner/meet my friends/watch a film].
Today I want to tell you about {thing}. It is [an old/an interesting/a simple/an important] subject, and [many people have questions about it/everyone should know a little about it/there is a lot to say].
The city of {city} is [known for its museums and parks/a busy place with many visitors/a good place to live]. [In summer, people sit by the river./There are many small shops and cafes./The streets are full of life.]
The most important thing in life is [health/friendship/to be kind/to keep learning]. [Money can help, but it is not everything./Everything else comes later./We often forget it when we are busy.]
I think that {thing} [is important for everyone/will change in the next years/brings people together]. [We should talk about it more often./There are good reasons for it./What do you think?]
It was a [dark and stormy/warm and quiet/cold and clear] night. [The wind was blowing/The moon was shining/Rain was falling] over the [old town/fields/sea], and [nobody was on the street/a light was burning in the window/a dog was barking far away].
If you want to [cook rice/make tea/bake bread], you need [water and a pot/time and good ingredients]. First, [boil the water/wash your hands/clean the table]. Then [wait for some minutes/mix everything well]. [Enjoy your meal!/Serve it warm.]
Dear {name}, thank you for your letter. [I was happy to hear from you./It was good to read your news.] [We are all well here in {city}./I hope that you and your family are well.] [See you soon./Please write again.] Yours, {name}
The sun is a star. The earth [goes around the sun in one year/turns around itself in one day], and the moon goes around the earth in about a month.
A language model is a program that predicts the next word of a text. It [has read many texts/learns from examples] and [can write, answer questions and call tools/does not always tell the truth].
vLLM is a library for fast inference of language models. It [keeps the attention cache in pages/serves many requests at the same time/shares the cache of equal prompts].
Python is a [popular/simple/powerful] programming language. It is used for [web pages, data and machine learning/teaching, science and small scripts].
There are many reasons to [learn a new language/read books/travel/do sports]. [It is fun/It keeps the mind young/It opens new doors], and [you meet new people/you learn a lot about yourself/it makes you happy].
The quick brown fox jumps over the lazy dog.
The first thing I [noticed/saw/heard] was [the sound of the sea/a small bird on the roof/an old man with a red hat]. [Then everything went quiet./I will never forget that day./It was the start of a long story.]
People in {country} [like to eat together/are proud of their history/love music and dance]. [Every region has its own food./There are festivals in every season.]
""".strip().splitlines()  # noqa: E501

_THINGS = """
music, books, travel, sports, friendship, the sea, history, science, food, family, school, art,
technology, energy, water, health, the internet, space, animals, trees, money, time, language
"""
THINGS = [" ".join(thing.split()) for thing in _THINGS.split(",")]

TOPICS = THINGS + """
the importance of higher education; the importance of education; climate change; social media;
the value of friendship; artificial intelligence; healthy food; the history of the internet;
the benefits of exercise; public transport; the role of science; renewable energy; teamwork;
learning a foreign language; reading; the meaning of freedom; life in a big city; modern art;
the importance of sleep; space travel; computer games; the power of music; democracy; tourism;
protecting the environment; the future of work; honesty; leadership; good manners; open source;
the importance of water; women in science; mental health; online learning; the role of teachers
""".replace("\n", " ").strip().split("; ")  # fmt: skip

_ESSAY_REQUESTS = """
Write an essay about {t}.
Write a short essay about {t}.
Write an essay on {t}.
Please write an essay about {t}.
Can you write an essay about {t}?
Write a text about {t}.
Write a few paragraphs about {t}.
Write something about {t}.
I need an essay about {t}.
Compose a short essay on {t}.
""".strip().splitlines()

_OPENING = """
[Few subjects/Not many subjects] are as important today as {t}. [Everyone has met it in one way or another/It touches the life of every one of us], and yet we rarely take the time to think about it.
When people talk about {t}, [opinions differ/they often disagree]. [Still/Nevertheless], there are good reasons to look at it more closely.
{T} is a subject that [concerns all of us/has moved people for a long time]. In this essay I want to show why it matters and what we can learn from it.
""".strip().splitlines()  # noqa: E501
_FIRST = """
First of all, {t} [helps us to understand the world/opens new doors]. People who [know more about it/take it seriously] can [make better decisions/find new ways to solve old problems], both at work and at home.
To begin with, {t} has a long history. [Our parents and grandparents/Earlier generations] had to [learn about it the hard way/find their own answers], and we can [build on what they found/profit from their experience].
One reason for the importance of this subject is that it [brings people together/changes how we live]. [Young and old/Rich and poor] people [meet, talk and learn from each other/share the same questions and hopes].
""".strip().splitlines()  # noqa: E501
_SECOND = """
Secondly, there is an economic side. [Societies/Countries] that invest in {t} [grow faster/are better prepared for the future], because [new ideas need knowledge and time/people can use their talents]. Of course, [this is not free/this has a price], but the benefits are larger than the costs.
On the other hand, there are [problems/risks] as well. Not everyone [has the same chances/can take part], and [changes take time/good plans sometimes fail]. For this reason, {t} needs [rules that are fair/patience and an open mind].
In addition, {t} teaches us [to think for ourselves/to be patient and careful]. [Small steps/Daily habits] are often more important than great plans, and [even a small effort/every one of us] can make a difference.
""".strip().splitlines()  # noqa: E501
_CLOSING = """
In conclusion, {t} is [more than a word/not a luxury]. It [makes our lives richer/helps us to grow], and it is worth [our time and our attention/every effort].
To sum up, we should [take {t} seriously/care about {t}]. If we [work together/start today], [the next generation will thank us/everyone will profit from it].
All in all, {t} [will stay important/deserves more attention]. The [future/answer] is in our hands.
""".strip().splitlines()  # noqa: E501


def _choose(rng: random.Random, pattern: str) -> str:
    """Replace every [a/b/c] by one of its choices."""
    while "[" in pattern:
        before, rest = pattern.split("[", 1)
        choices, after = rest.split("]", 1)
        pattern = before + rng.choice(choices.split("/")) + after
    return pattern


def prose_text(rng: random.Random) -> Sample:
    """A short plain text, learnt from its first word on."""
    weights = [4 if number < 9 else 1 for number in range(len(_TEXTS))]
    text = _choose(rng, rng.choices(_TEXTS, weights)[0])
    while "{name}" in text:
        name = f"{rng.choice(words.FIRST_NAMES)} {rng.choice(words.LAST_NAMES)}"
        text = text.replace("{name}", rng.choice((name, name.split()[0])), 1)
    job = rng.choice(words.OCCUPATIONS).lower()
    text = text.replace("a {job}", f"{'an' if job[0] in 'aeiou' else 'a'} {job}")
    for mark, choices in (
        ("{city}", words.CITIES),
        ("{country}", words.COUNTRIES),
        ("{thing}", THINGS),
    ):
        text = text.replace(mark, rng.choice(choices))
    sample = Sample("prose")
    sample.add(text + "<|endoftext|>", 1.0)
    return sample


def essay_chat(rng: random.Random) -> Sample:
    """A request for an essay, and four paragraphs about its topic."""
    sample = Sample("essay")
    if rng.random() < 0.3:
        topic = " ".join(invented_word(rng, 0.01) for _ in range(rng.randint(1, 2)))
    else:
        topic = rng.choice(TOPICS)
    if rng.random() < 0.4:
        sample.turn("system", plain_system(rng))
    asked = sample.turn("user", vary(rng, rng.choice(_ESSAY_REQUESTS)).replace("{t}", topic))
    paragraphs = [
        _choose(rng, rng.choice(part))
        .replace("{t}", topic)
        .replace("{T}", topic[0].upper() + topic[1:])
        for part in (_OPENING, _FIRST, _SECOND, _CLOSING)
    ]
    said = sample.answer("\n\n".join(paragraphs))
    sample.copied_from("question", topic, said, asked)
    return sample
