"""How people ask for a cell of a table, and the words of the answers."""

import random

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

_SPECIAL = {
    "ID": """
Which ID does {n} have?
Under which ID is {n} listed?
What ID belongs to {n}?
What number is {n} in the list?
Which row ID is {n}?
""",
    "Age": """
How old is {n}?
How old is {n}?
How old is {n}?
How old is {n} now?
Do you know how old {n} is?
Tell me how old {n} is.
How many years old is {n}?
Can you tell me how old {n} is?
What age is {n}?
How many years has {n} lived?
I wonder how old {n} is.
""",
    "Occupation": """
What does {n} do for a living?
What does {n} do for a living?
What does {n} do?
What is {n}'s line of work?
What kind of work does {n} do?
What does {n} work as?
How does {n} earn a living?
What is {n} by profession?
Which job does {n} have?
Who is {n} professionally?
What work does {n} do?
As what does {n} work?
Tell me what {n} does for a living.
What is {n} working as?
""",
    "Country": """
Which country is {n} from?
Which country is {n} from?
What country is {n} from?
Where is {n} from?
Where does {n} come from?
From which country is {n}?
In which country does {n} live?
Which country does {n} live in?
Which country does {n} come from?
What country does {n} come from?
What country does {n} live in?
Tell me which country {n} is from.
Can you tell me where {n} is from?
""",
    "Email": """
How can I reach {n} by email?
Where can I send an email to {n}?
How do I email {n}?
I want to write an email to {n}. What is the address?
Which email address does {n} use?
What email does {n} use?
To which email address do I write to reach {n}?
I want to email {n}.
How can I write to {n} by e-mail?
""",
    "Phone Number": """
How can I call {n}?
What number do I call to reach {n}?
Which number do I dial to reach {n}?
How can I reach {n} by phone?
I want to call {n}. What is the number?
At which phone number can I reach {n}?
What number should I call for {n}?
How do I phone {n}?
I need to call {n}.
""",
    "Address": """
Where does {n} live?
Where does {n} live?
Where is {n}'s home?
At which address does {n} live?
What address does {n} live at?
Where can I send a letter to {n}?
Where can I visit {n}?
What street does {n} live on?
Where do I find {n}'s house?
Tell me where {n} lives.
Where should I send a parcel for {n}?
""",
}
_SPECIAL = {column: text.strip().splitlines() for column, text in _SPECIAL.items()}

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
        template = rng.choice(_FRAMES).replace("{q}", rng.choice(_CLAUSES[column]))
    elif chance < 0.55:
        template = rng.choice(_SPECIAL[column])
    else:
        template = rng.choice(_GENERIC).replace("{c}", rng.choice(_WORDS[column]))
    chance = rng.random()
    if chance < 0.15:
        template = template.lower()
    elif chance < 0.3 and template[0] != "{":
        before = rng.choice(_BEFORE)
        first = template[0].lower() if before.endswith((", ", ": ", "And ", "So ")) else template[0]
        template = before + first + template[1:]
    else:
        template = template[0].upper() + template[1:]
    chance = rng.random()
    if chance < 0.05:
        template = template.rstrip("?.")
    elif chance < 0.12:
        template += rng.choice(_AFTER)
    elif chance < 0.18:
        word = ANSWER_WORDS[column]
        label = rng.choice((" Your answer: The", " Answer: The", " Your answer:"))
        template += f"{label} {word} of {{n}} is " if label.endswith("The") else label
    return template.replace("{n}", name)
