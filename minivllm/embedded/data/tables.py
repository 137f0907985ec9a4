"""Markdown tables of people and conversations about them: the model's main skill.

An answer always has the form ``The {column} of {name} is {cell}.`` or, when the name or the
column is missing, ``The {column} of {name} is not in the table.``: by the time the cell is due,
the answer itself has restated what to look up.
"""

import random
from dataclasses import dataclass

from minivllm.embedded.data import phrases
from minivllm.embedded.data.people import COLUMNS, Population
from minivllm.embedded.data.sample import Copy, Gather, Sample, Span
from minivllm.embedded.data.smalltalk import small_exchange

LOOKUP_WEIGHT = 4.0
"""Loss weight of the tokens after the name: there the lookup happens, the rest copies on."""


@dataclass
class Layout:
    """Layout of a table in Markdown."""

    padded: bool
    spaced: bool = True
    colons: bool = False
    dashes: int | None = 3

    @classmethod
    def draw(cls, rng: random.Random, padded_share: float) -> "Layout":
        """A random layout; the separator row is as wide as the cells, or has few dashes."""
        padded = rng.random() < padded_share
        few = rng.choice((3, 3, 3, 4, 5))
        return cls(
            padded=padded,
            spaced=padded or rng.random() < 0.96,
            colons=rng.random() < 0.1,
            dashes=None if padded and rng.random() < 0.8 else few,
        )


@dataclass
class Drawn:
    """Places of a table's parts in the text of a sample."""

    headers: dict[str, Span]
    rows: list[dict[str, Span]]
    ends: list[int]
    """End of each row, its last pipe included."""


def draw_table(
    sample: Sample, columns: list[str], people: list[dict[str, str]], layout: Layout
) -> Drawn:
    """Append the table to the sample's text."""
    widths = {c: max(len(c), *(len(p[c]) for p in people)) + 1 for c in columns}
    gap = " " if layout.spaced else ""

    def line(cells: dict[str, str]) -> dict[str, Span]:
        spans = {}
        for column in columns:
            sample.add("|" + gap)
            spans[column] = sample.add(cells[column])
            width = widths[column] if layout.padded else len(cells[column])
            sample.add(" " * (width - len(cells[column])) if layout.padded else gap)
        sample.add("|\n")
        return spans

    headers = line({column: column for column in columns})
    for column in columns:
        dashes = widths[column] + 1 if layout.dashes is None else layout.dashes
        rule = "-" * dashes if not layout.colons else ":" + "-" * max(1, dashes - 2) + ":"
        pad = " " if layout.spaced and layout.dashes is not None else ""
        sample.add(f"|{pad}{rule}{pad}")
    sample.add("|\n")
    rows = []
    ends = []
    for person in people:
        start = len(sample.text)
        rows.append(line(person))
        ends.append(len(sample.text) - 1)
        sample.rows.append((start, ends[-1]))
    return Drawn(headers, rows, ends)


def note_table_pointers(sample: Sample, drawn: Drawn) -> None:
    """Cells know their row by its name and their column by its header.

    The ID stands before the name and cannot know it, so the token behind the name stands in for
    it: that token collects the ID, and counts as a cell of the ID column.
    """
    for spans, row_end in zip(drawn.rows, drawn.ends, strict=True):
        name = spans["Name"]
        sample.gathers.append(Gather("row", (name[0] + 1, row_end), name))
        for column, span in spans.items():
            sample.gathers.append(Gather("column", span, drawn.headers[column]))
        if "ID" in spans:
            first, stop = spans["ID"]
            after_name = (name[1], name[1] + 1)
            sample.gathers.append(Gather("id", after_name, (first, first + 1)))
            sample.gathers.append(Gather("id_end", after_name, (stop - 1, stop)))
            sample.gathers.append(Gather("column", after_name, drawn.headers["ID"]))


@dataclass
class Question:
    """A question about one column of one person; `row` is None if the name is not there."""

    column: str
    name: str
    row: int | None
    text: str = ""


def note_answer_pointers(
    sample: Sample, drawn: Drawn, question: Question, asked: Span, said: Span, value: Span | None
) -> None:
    """`asked` is the question's span, `said` the answer's, `value` the copied cell's in it."""
    word = phrases.ANSWER_WORDS[question.column]
    column_at = sample.text.find(word, *said)
    name_at = sample.text.find(question.name, column_at + len(word), said[1])
    name = (name_at, name_at + len(question.name))
    asked_at = sample.text.rfind(question.name, *asked)
    if asked_at >= 0:
        asked_name = (asked_at, asked_at + len(question.name))
        sample.copies.append(Copy("question", name, asked_name, closes=True))
    tail = (name[1], said[1])
    sample.gathers.append(Gather("row", (name[0] + 1, said[1]), name))
    sample.gathers.append(Gather("column", tail, (column_at, column_at + len(word))))
    decides = (name[1], name[1] + len(" is"))
    if value is None:
        sample.gathers.append(Gather("cell", decides, (0, 1)))
    elif question.column == "ID":
        name_end = drawn.rows[question.row]["Name"][1]
        sample.gathers.append(Gather("cell", (name[1], value[0] + 1), (name_end, name_end + 1)))
    else:
        source = drawn.rows[question.row][question.column]
        sample.gathers.append(Gather("cell", decides, (source[0], source[0] + 1)))
        sample.copies.append(Copy("cell", value, source, closes=True))


def absent_name(rng: random.Random, people: list[dict[str, str]], missing: str) -> str:
    """A name that is probably not in the table, often one that is half right."""
    one, other = (rng.choice(people)["Name"].split() for _ in range(2))
    chance = rng.random()
    if chance < 0.45:
        return missing
    if chance < 0.6:
        return f"{missing.split()[0]} {other[-1]}"
    if chance < 0.75:
        return f"{other[0]} {missing.split()[-1]}"
    if chance < 0.9:
        return f"{one[0]} {other[-1]}"
    spelling = list(" ".join(one))
    spelling[rng.randrange(1, len(spelling))] = rng.choice("aeiourstnlm")
    return "".join(spelling)


def draw_questions(
    rng: random.Random, columns: list[str], people: list[dict[str, str]], missing: str, count: int
) -> list[Question]:
    """Random questions; some ask for a missing name (often half right) or a missing column."""
    askable = [c for c in columns if c != "Name"]
    absent = [c for c in COLUMNS if c not in columns]
    present = {person["Name"].lower() for person in people}
    questions: list[Question] = []
    while len(questions) < count:
        row = rng.randrange(len(people))
        column = rng.choice(askable)
        name = people[row]["Name"]
        chance = rng.random()
        if chance < 0.16:
            name = absent_name(rng, people, missing)
            row = None if name.lower() not in present else row
            if row is None:
                questions.append(Question(column, name, None))
            continue
        if chance < 0.21 and absent:
            column = rng.choice(absent)
        questions.append(Question(column, name, row))
    return questions


@dataclass
class TableShape:
    """Which tables a stage of training (or an evaluation) is about."""

    rows: tuple[int, int] = (2, 4)
    columns: tuple[int, int] = (2, 8)
    questions: tuple[int, int] = (8, 16)
    padded_share: float = 0.5
    invented: float | None = None
    """Share of invented words; None: varies from table to table."""
    held_out: bool = False
    everyday: bool = False
    """People who rarely share a name; otherwise, shared names are frequent."""


def draw_columns(rng: random.Random, shape: TableShape) -> list[str]:
    """Name and some other columns, mostly in the usual order; an ID comes before the name."""
    others = [c for c in COLUMNS if c != "Name"]
    chosen = rng.sample(others, rng.randint(*shape.columns) - 1)
    columns = [c for c in COLUMNS if c in chosen or c == "Name"]
    if rng.random() < 0.15:
        first = columns[: columns.index("Name") + 1]
        rest = columns[len(first) :]
        rng.shuffle(rest)
        columns = first + rest
    return columns


def table_conversation(rng: random.Random, shape: TableShape) -> Sample:
    """A table in the system prompt or in the first user message, and many questions about it."""
    invented = rng.choice((0.0, 0.3, 0.6, 0.9)) if shape.invented is None else shape.invented
    population = Population(rng, invented, shape.held_out, shape.everyday)
    columns = draw_columns(rng, shape)
    people = population.people(rng.randint(*shape.rows))
    questions = draw_questions(
        rng, columns, people, population.name(), rng.randint(*shape.questions)
    )
    sample = Sample("table")
    layout = Layout.draw(rng, shape.padded_share)
    chance = rng.random()
    for question in questions:
        question.text = phrases.question(rng, question.column, question.name, shape.held_out)
    if chance < 0.1:
        _plain_prompt(rng, sample, columns, people=people, layout=layout, questions=questions)
        return sample
    in_user_turn = chance < 0.29
    if not in_user_turn:
        sample.add("<|im_start|>system\n")
        sample.add(phrases.table_opening(rng))
        drawn = draw_table(sample, columns, people, layout)
        sample.add(phrases.table_closing(rng) + "<|im_end|>\n")
    elif rng.random() < 0.3:
        sample.turn("system", phrases.plain_system(rng))
    for number, question in enumerate(questions):
        if number and not shape.held_out and rng.random() < 0.03:
            small_exchange(rng, sample)
        sample.add("<|im_start|>user\n")
        if number == 0 and in_user_turn:
            sample.add(phrases.table_opening(rng))
            drawn = draw_table(sample, columns, people, layout)
            sample.add(phrases.table_closing(rng).strip() + "\n")
        asked = sample.add(question.text)
        sample.add("<|im_end|>\n")
        _add_answer(sample, drawn, question, people, asked, chat=True)
    note_table_pointers(sample, drawn)
    return sample


def _add_answer(
    sample: Sample,
    drawn: Drawn,
    question: Question,
    people: list[dict[str, str]],
    asked: Span,
    chat: bool,
) -> None:
    start = f"The {phrases.ANSWER_WORDS[question.column]} of {question.name} is"
    if question.row is None or question.column not in drawn.headers:
        content = start + " not in the table."
        cell = None
    else:
        cell = people[question.row][question.column]
        content = f"{start} {cell}."
    label = "missing" if cell is None else question.column
    if chat:
        said = sample.answer(content, label)
    else:
        said = sample.add(content, 1.0)
        sample.answers.append((label, said))
    value = None if cell is None else (said[1] - 1 - len(cell), said[1] - 1)
    decided = said[0] + len(start) - len(" is")
    sample.learnt.append(((decided, said[0] + len(start) + len(" x")), LOOKUP_WEIGHT))
    note_answer_pointers(sample, drawn, question, asked=asked, said=said, value=value)


def _plain_prompt(
    rng: random.Random,
    sample: Sample,
    columns: list[str],
    people: list[dict[str, str]],
    layout: Layout,
    questions: list[Question],
) -> None:
    """No chat at all: table, then `Question: ... Your answer: ...` lines to be continued."""
    sample.add(phrases.table_opening(rng))
    drawn = draw_table(sample, columns, people, layout)
    asked_word, answer_word = rng.choice(phrases.PLAIN_LABELS)
    gap = rng.choice((" ", "\n"))
    for question in questions:
        sample.add(f"{asked_word} ")
        asked = sample.add(question.text)
        sample.add(f" {answer_word}")
        sample.add(gap, 1.0)
        _add_answer(sample, drawn, question, people, asked, chat=False)
        sample.add("\n", 1.0)
    note_table_pointers(sample, drawn)
