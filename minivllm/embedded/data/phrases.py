"""How people ask for a cell of a table, and the words of the answers."""

import random

from minivllm.embedded.data import asides
from minivllm.embedded.data.column_questions import COLUMN_QUESTIONS

ANSWER_WORDS = {
    "ID": "ID",
    "Age": "age",
    "Occupation": "occupation",
    "Country": "country",
    "Email": "email",
    "Phone Number": "phone number",
    "Address": "address",
}

PLAIN_LABELS = (
    ("Question:", "Your answer:"),
    ("Question:", "Answer:"),
    ("Q:", "A:"),
    ("User:", "Assistant:"),
)

# {c} is the column's everyday word, {n} the name.
_GENERIC = """
What is the {c} of {n}?
What is the {c} of {n}?
What is {n}'s {c}?
What's {n}'s {c}?
What's the {c} of {n}?
Tell me the {c} of {n}.
Tell me {n}'s {c}.
Give me the {c} of {n}.
Give me {n}'s {c}, please.
Can you tell me the {c} of {n}?
Can you find the {c} of {n}?
Could you tell me {n}'s {c}?
I need the {c} of {n}.
I need {n}'s {c}.
I would like to know the {c} of {n}.
Please look up the {c} of {n}.
Please give me the {c} for {n}.
Look up {n}'s {c}.
Find {n}'s {c}.
Find the {c} of {n} in the table.
Do you know the {c} of {n}?
Do you know {n}'s {c}?
{n}'s {c}?
The {c} of {n}?
{c} of {n}
{c} of {n}?
{n}: {c}?
{n}, {c}
What {c} does {n} have?
Which {c} does {n} have?
What does the table say about the {c} of {n}?
According to the table, what is the {c} of {n}?
What is listed as {n}'s {c}?
Look at {n}. What is the {c}?
And the {c} of {n}?
And {n}'s {c}?
How about the {c} of {n}?
What about {n}'s {c}?
Remind me of {n}'s {c}.
Show me the {c} of {n}.
Please tell me {n}'s {c}.
What is the {c} for {n}?
What {c} is given for {n}?
I forgot the {c} of {n}. What is it?
Which {c} belongs to {n}?
For {n}, what is the {c}?
{n} - what is the {c}?
{n} has which {c}?
{n} has what {c}?
Regarding {n}: what is the {c}?
As for {n}, which {c} is listed?
About {n}: the {c}, please.
My question is about {n}. What is the {c}?
The {c} for {n} is what?
The {c} of {n} is?
Let me know the {c} of {n}.
Let me have {n}'s {c}.
I want {n}'s {c}.
I am interested in the {c} of {n}.
I am trying to find the {c} of {n}.
Is there a {c} for {n}?
Is the {c} of {n} known?
Please provide the {c} of {n}.
Provide {n}'s {c}.
Please share the {c} of {n}.
Please state the {c} of {n}.
Search the table for the {c} of {n}.
Check the {c} of {n}.
Say the {c} of {n}.
Return the {c} of {n}.
Retrieve {n}'s {c}.
What would be the {c} of {n}?
What was the {c} of {n} again?
What did the table say is the {c} of {n}?
Which {c} is given for {n} in the table?
Which {c} do we have for {n}?
Do we have the {c} of {n}?
Do you have {n}'s {c}?
Can I get the {c} of {n}?
Can you give me the {c} for {n}?
Can you find {n} and tell me the {c}?
Someone named {n} is in the table. Which {c}?
Who is {n} and what is the {c}?
""".strip().splitlines()

_WORDS = {
    "ID": ("ID", "ID", "id", "ID number", "identifier", "number in the table"),
    "Age": ("age", "age", "age", "age in years"),
    "Occupation": ("occupation", "occupation", "job", "profession", "job title", "work"),
    "Country": ("country", "country", "home country", "country of origin", "nationality"),
    "Email": ("email", "email", "email address", "e-mail", "e-mail address", "mail address"),
    "Phone Number": ("phone number", "phone number", "phone", "telephone number", "telephone",
                     "number", "mobile number"),
    "Address": ("address", "address", "home address", "street address", "postal address"),
}  # fmt: skip

# Indirect questions: any frame around any clause of the column.
_FRAMES = """
Can you tell me {q}?
Could you tell me {q}?
Could you please tell me {q}?
Can you look up {q}?
Could you look up {q}, please?
Could you find out {q}?
Can you see {q}?
Can you check {q}?
Do you know {q}?
Do you happen to know {q}?
Please tell me {q}.
Please find out {q}.
Please look up {q}.
Tell me {q}.
I want to know {q}.
I'd like to know {q}.
I need to know {q}.
I have to find out {q}.
I am looking for {q}.
I forgot {q}.
I wonder {q}.
It would help me to know {q}.
Read in the table {q}.
Let me know {q}.
I was asked {q}.
Someone wants to know {q}.
My boss asks {q}.
I am not sure {q}.
The question is {q}.
See {q}.
""".strip().splitlines()

_CLAUSES = {
    "ID": ("which ID {n} has", "what the ID of {n} is", "under which ID {n} is listed",
           "{n}'s ID", "the ID of {n}"),
    "Age": ("how old {n} is", "what age {n} is", "what age {n} has", "the age of {n}",
            "{n}'s age", "how many years old {n} is"),
    "Occupation": ("what {n} does for a living", "what {n} works as", "what job {n} has",
                   "which occupation {n} has", "what {n}'s profession is", "what {n} does",
                   "which work {n} does", "{n}'s job", "the occupation of {n}"),
    "Country": ("which country {n} is from", "where {n} is from", "where {n} comes from",
                "what country {n} comes from", "in which country {n} lives",
                "in which country {n} is living", "{n}'s country", "the country of {n}"),
    "Email": ("which email address {n} has", "how to reach {n} by email", "what {n}'s email is",
              "at which email address I can reach {n}", "{n}'s email address",
              "the email of {n}", "the e-mail address of {n}"),
    "Phone Number": ("which phone number {n} has", "how to reach {n} by phone", "{n}'s number",
                     "what number to call for {n}", "at which number I can call {n}",
                     "the phone number of {n}", "what {n}'s telephone number is"),
    "Address": ("where {n} lives", "where {n} is living", "at which address {n} lives",
                "what address {n} lives at", "which street {n} lives in", "{n}'s address",
                "the address of {n}", "what {n}'s home address is", "where {n}'s house is"),
}  # fmt: skip

_BEFORE = ("Please tell me: ", "Hi! ", "Hello, ", "Question: ", "Quick question: ", "Thanks. ",
           "Thank you! ", "OK, ", "And ", "Next: ", "So ", "Now, ", "Great. ", "Excuse me, ",
           "I have a question. ", "One more: ", "Hey, ", "Good. ", "Also, ")  # fmt: skip
_AFTER = (" Please.", " Thanks!", " Thank you.", " Answer in one sentence.", " Answer briefly.",
          " Use the table.", " I need it for a letter.", " Please check the table.")  # fmt: skip

HELD_OUT = {
    "ID": "Would you mind finding out which ID belongs to {n}?",
    "Age": "Any idea how old {n} might be?",
    "Occupation": "May I ask what kind of job {n} has?",
    "Country": "Remind me which country {n} comes from, will you?",
    "Email": "Could I have the email address of {n}?",
    "Phone Number": "Could I get the phone number of {n}, please?",
    "Address": "May I ask at which address {n} is living?",
}


def question(rng: random.Random, column: str, name: str, held_out: bool = False) -> str:
    """One way to ask for this column of this person, with or without words around it."""
    if held_out and rng.random() < 0.3:
        template = HELD_OUT[column]
    elif (chance := rng.random()) < 0.2:
        frame = rng.choice(_FRAMES)
        if not held_out and rng.random() < 0.3:
            frame = asides.some_words(rng, 4) + rng.choice((" {q}?", " {q}", ", {q}?", " {q}."))
        template = frame.replace("{q}", rng.choice(_CLAUSES[column]))
    elif chance < 0.55:
        template = rng.choice(COLUMN_QUESTIONS[column])
    else:
        template = rng.choice(_GENERIC).replace("{c}", rng.choice(_WORDS[column]))
    if not held_out and rng.random() < 0.2:
        template = asides.around_name(rng, template)
    chance = rng.random()
    if chance < 0.15:
        template = template.lower()
    elif chance < 0.3 and template[0] != "{":
        before = rng.choice(_BEFORE) if rng.random() < 0.8 else asides.sentence(rng) + " "
        first = template[0].lower() if before.endswith((", ", ": ", "And ", "So ")) else template[0]
        template = before + first + template[1:]
    else:
        template = template[0].upper() + template[1:]
    chance = rng.random()
    if chance < 0.05:
        template = template.rstrip("?.")
    elif chance < 0.1:
        template += rng.choice(_AFTER)
    elif chance < 0.12:
        template += f" {asides.sentence(rng)}"
    elif chance < 0.18:
        word = ANSWER_WORDS[column]
        label = rng.choice((" Your answer: The", " Answer: The", " Your answer:"))
        template += f"{label} {word} of {{n}} is " if label.endswith("The") else label
    return template.replace("{n}", name)
