"""The deck of cards has each question and each term once, and no line that would break a card."""

import csv
import importlib.util
from pathlib import Path

from minivllm.exercises import quiz

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def test_the_deck(tmp_path):
    spec = importlib.util.spec_from_file_location("anki", NOTEBOOKS / "anki.py")
    anki = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(anki)
    num_cards = anki.write_deck(tmp_path / "deck.tsv")
    lines = (tmp_path / "deck.tsv").read_text(encoding="utf-8").splitlines()
    assert lines[:4] == ["#separator:tab", "#html:true", "#tags column:3", "#deck column:4"]
    cards = list(csv.reader(lines[4:], delimiter="\t"))
    assert len(cards) == num_cards == len({front for front, *_ in cards})
    assert {len(card) for card in cards} == {4}
    assert sum(tag.startswith("quiz::") for _, _, tag, _ in cards) == 5 * len(quiz)
    decks = {deck for *_, deck in cards}
    assert {f"minivllm::{number}" for number in quiz} <= decks
    assert all(deck == f"minivllm::{tag.split('::')[1]}" for *_, tag, deck in cards)
    front, back, *_ = cards[0]
    question = quiz["00"].questions[0]
    assert front.startswith(question.text)
    assert back.startswith(f"{question.answer}) {question.right}: {question.because}"[:60])
    assert all(f"Not {wrong!r}"[:20] in back.replace("&#x27;", "'") for wrong in question.wrong)
    assert any(tag == "term::01" and front == "KV cache" for front, _, tag, _ in cards)
