"""A deck of cards: ``python notebooks/anki.py`` writes minivllm.tsv, which Anki imports.

A card for each question of the quiz, with the reason for the right and for each wrong choice, and
one for each term of the glossary. The third column is the card's tag, the fourth its deck: there is
one for each chapter, below "minivllm".
"""

import argparse
import csv
import html
from pathlib import Path

from minivllm.exercises import quiz

GLOSSARY = Path(__file__).parent / "guide" / "glossary.md"


def quiz_cards() -> list[tuple[str, str, str]]:
    """Front, back and tag of each question."""
    cards = []
    for number in quiz:
        for question in quiz[number].questions:
            choices = [
                f"{letter}) {html.escape(text)}" for letter, text in question.choices.items()
            ]
            reasons = [f"Not {text!r}: {reason}" for text, reason in question.wrong.items()]
            right = f"{question.answer}) {question.right}: {question.because}"
            front = "<br>".join([html.escape(question.text), *choices])
            cards.append(
                (front, "<br>".join(map(html.escape, [right, *reasons])), f"quiz::{number}")
            )
    return cards


def glossary_cards() -> list[tuple[str, str, str]]:
    """Front, back and tag of each term, with vLLM's name for it and the Chinese one."""
    cards = []
    for line in GLOSSARY.read_text(encoding="utf-8").splitlines():
        if not line.startswith("| ") or line.startswith("| term"):
            continue
        term, text, notebook, _, name, chinese = [cell.strip() for cell in line.split("|")[1:-1]]
        back = f"{text}<br>vLLM: {name}<br>{chinese}"
        cards.append((term, back, f"term::{notebook}"))
    return cards


def write_deck(target: Path) -> int:
    """Write both kinds of cards. Returns how many."""
    cards = [
        (front, back, tag, f"minivllm::{tag.partition('::')[2]}")
        for front, back, tag in quiz_cards() + glossary_cards()
    ]
    with target.open("w", encoding="utf-8", newline="") as file:
        file.write("#separator:tab\n#html:true\n#tags column:3\n#deck column:4\n")
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows(cards)
    return len(cards)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=Path("minivllm.tsv"))
    target = parser.parse_args().to
    print(f"{target}: {write_deck(target)} cards")
