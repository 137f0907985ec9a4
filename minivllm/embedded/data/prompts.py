"""What stands around a table in a prompt, and system prompts without one."""

import random

from minivllm.embedded.data import asides

_ROLES = """
You are a helpful assistant in recognizes the content of tables in markdown format.
You are a helpful assistant.
You are a helpful assistant that answers questions about tables.
You are an assistant for our staff directory.
You are a careful office assistant.
You are a precise data assistant. Answer with facts from the table only.
You answer questions about people.
You read tables and answer questions about them.
You work at the front desk and look up people for visitors.
You are the help desk of a small company.
Act as a database that answers in plain English.
You are a friendly assistant who knows everyone in this table.
Your task is to find information in a table.
You are an AI assistant for the human resources department.
You help people to find contact details.
Be short and accurate.
Answer in one sentence.
You are a polite assistant. Use the data below.
You are an expert in reading Markdown.
Use only the table to answer the questions of the user.
""".strip().splitlines()

_ANNOUNCEMENTS = """
Here is a table as follows.
Here is a table.
Here is the table:
The table is given below.
Below is a table of people.
This is the list of our members:
Here are the people you need to know.
Consider the following table.
The following table lists some people.
Read this table:
Use the following data to answer the questions.
These are the records we have.
Our customers are listed here:
Employees:
Table of contacts:
Please study the table below and answer the questions about it.
The data:
Context:
Known people:
Answer questions based on this table.
Given this table, answer the questions.
I have a table with personal data.
""".strip().splitlines()

_HEADINGS = (
    "# Table", "# Table", "## Table", "# People", "## Data", "### Staff", "# Contacts", "Table:",
    "# Directory", "## Members", "**Table**", "# Employee records", "Data:", "# Users",
)  # fmt: skip

_CLOSINGS = """
Answer the questions about this table.
Please answer in one sentence.
Use the table to answer.
Answer briefly.
That is all.
Only use the table above.
If something is not in the table, say so.
The user will ask about these people.
Do not make up anything.
Now answer the question.
Be polite and brief.
Thank you.
""".strip().splitlines()

_SYSTEM = """
You are a helpful assistant.
You are a friendly chat bot.
Answer the questions of the user.
You are a small language model.
Be brief and polite.
You are an assistant who reads tables.
""".strip().splitlines()


def table_opening(rng: random.Random) -> str:
    """What stands before a table, up to the line break before its first row."""
    parts = []
    if rng.random() < 0.8:
        parts.append(rng.choice(_ROLES))
    if rng.random() < 0.75:
        parts.append(rng.choice(_ANNOUNCEMENTS))
    if rng.random() < 0.25:
        parts.insert(rng.randint(0, len(parts)), asides.sentences(rng, 3))
    text = rng.choice((" ", " ", "\n", "\n\n")).join(parts)
    if rng.random() < 0.5:
        text += ("\n" if text else "") + rng.choice(_HEADINGS)
    return text + rng.choice(("\n", "\n", "\n\n")) if text else ""


def table_closing(rng: random.Random) -> str:
    """What stands after a table; often nothing."""
    if rng.random() < 0.6:
        return ""
    closing = rng.sample(_CLOSINGS, rng.randint(1, 2))
    if rng.random() < 0.3:
        closing.insert(rng.randint(0, len(closing)), asides.sentences(rng, 3))
    return rng.choice(("", "\n")) + " ".join(closing)


def plain_system(rng: random.Random) -> str:
    """A system prompt without a table."""
    return rng.choice(_SYSTEM)
