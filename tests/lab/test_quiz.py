"""The quiz: five questions a notebook, one right answer each, and a reason for every wrong one."""

import re
from pathlib import Path

import pytest

from minivllm.exercises import ask, quiz

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def test_every_notebook_has_a_quiz():
    numbers = {path.name.split("_")[0] for path in NOTEBOOKS if path.stem != "90_minutes"}
    assert numbers <= set(quiz)


@pytest.mark.parametrize("notebook", list(quiz))
def test_a_question_has_one_right_answer_and_says_why_others_are_wrong(notebook):
    asked = quiz[notebook].questions
    assert len(asked) == 5
    for question in asked:
        choices = question.choices
        assert 3 <= len(choices) == len(set(choices.values())) <= 4
        assert [letter for letter in choices if choices[letter] == question.right] == [
            question.answer
        ]
        reasons = [question.because, *question.wrong.values()]
        assert len(set(reasons)) == len(reasons)
        for reason in reasons:
            assert re.fullmatch(r"\S.{15,}[.]", reason), reason
        assert question.text.endswith("?")


@pytest.mark.parametrize("notebook", list(quiz))
def test_a_right_choice_is_not_known_by_its_length_or_its_letter(notebook):
    asked = quiz[notebook].questions
    longest = [len(q.right) > max(map(len, q.wrong)) for q in asked]
    assert sum(longest) <= 3
    assert len({q.answer for q in asked}) > 1


@pytest.mark.parametrize("notebook", list(quiz))
def test_every_letter_gets_its_reason(notebook, capsys):
    for question in quiz[notebook].questions:
        for letter, choice in question.choices.items():
            question.grade(f" {letter.upper()} ")
            said = capsys.readouterr().out
            if choice == question.right:
                assert said == f"right: {question.because}\n"
            else:
                assert said == f"not yet: {question.wrong[choice]}\n"


def test_a_quiz_is_asked_and_graded_as_a_whole(capsys):
    ask(quiz["03"])
    *asked, unsolved, folded = capsys.readouterr().out.splitlines()
    numbers = [line[:3] for line in asked if line[:1].isdigit()]
    assert numbers == [f"{n}. " for n in range(1, 6)]
    assert (unsolved, folded) == ("not answered yet", "<folded: Answers>")
    right = [q.answer for q in quiz["03"].questions]
    quiz["03"].grade(", ".join(right).upper())
    assert capsys.readouterr().out.endswith("5 of 5\n")
    wrong = "a" if right[4] != "a" else "b"
    quiz["03"].grade([*right[:4], wrong])
    lines = capsys.readouterr().out.splitlines()
    assert lines[4].startswith("5. not yet: ")
    assert lines[-1] == "4 of 5"


@pytest.mark.parametrize("nothing", [None, ..., [None] * 5])
def test_no_answer_yet(nothing, capsys):
    quiz["03"].grade(nothing)
    assert capsys.readouterr().out == "not answered yet\n"
    quiz["03"].questions[0].grade(None)
    assert capsys.readouterr().out == "not answered yet\n"


@pytest.mark.parametrize("nonsense", ["a b", 3, ["a"], {"a": 1}, "a" * 5])
def test_what_is_no_answer_is_told_so(nonsense, capsys):
    quiz["03"].grade(nonsense)
    assert capsys.readouterr().out == 'not yet: give 5 letters, like "a a a a a".\n'


@pytest.mark.parametrize("nonsense", ["e", 3, "", ["a"]])
def test_what_is_no_letter_is_told_so(nonsense, capsys):
    quiz["03"].questions[0].grade(nonsense)
    assert capsys.readouterr().out == "not yet: answer with one of the letters a, b, c.\n"


def test_a_notebook_that_is_not_there():
    with pytest.raises(KeyError, match="'99' has no quiz; these have: 00, 00b, 01"):
        quiz["99"]
