"""Question: a multiple-choice question that answers every choice, the wrong ones above all."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from minivllm.course.asking.answers import NotYet, is_blank
from minivllm.course.asking.texts import one_line, unwrap
from minivllm.lab.viz.draw.wording import wrap

LETTERS = "abcd"


@dataclass(frozen=True, repr=False)
class Question:
    """One question with one right choice.

    Args:
        text: what is asked.
        right: the right choice.
        because: why it is right.
        wrong: each wrong choice with the reason why it looks right and is not.
        key: draws the order of the choices; the same in all languages.
    """

    text: str
    right: str
    because: str
    wrong: dict[str, str]
    key: str

    @classmethod
    def parse(cls, entry: dict[str, Any]) -> Question:
        """Make a question from its entry in a TOML file."""
        text, right, because = (unwrap(entry[key]) for key in ("text", "right", "because"))
        wrong = {unwrap(one["choice"]): unwrap(one["because"]) for one in entry["wrong"]}
        return cls(text, right, because, wrong=wrong, key=one_line(entry["text"]))

    @property
    def choices(self) -> dict[str, str]:
        """By letter. The order is drawn, from the question itself: the same on every machine."""
        texts = [self.right, *self.wrong]
        Random(self.key).shuffle(texts)
        return dict(zip(LETTERS, texts, strict=False))

    @property
    def answer(self) -> str:
        """The right letter."""
        return next(letter for letter, text in self.choices.items() if text == self.right)

    def is_right(self, letter: Any) -> bool:
        return self._choice(letter) == self.right

    def check(self, letter: Any) -> str:
        """Why this letter is right.

        Raises:
            NotYet: for any other one, saying why it is not.
        """
        choice = self._choice(letter)
        if choice is None:
            raise NotYet(f"answer with one of the letters {', '.join(self.choices)}.")
        if choice != self.right:
            raise NotYet(self.wrong[choice])
        return self.because

    def grade(self, letter: Any) -> None:
        """Print whether the letter is right, and why or why not. None is no answer yet."""
        if is_blank(letter):
            print("not answered yet")
            return
        try:
            print(f"right: {self.check(letter)}")
        except NotYet as reason:
            print(f"not yet: {reason}")

    def _choice(self, letter: Any) -> str | None:
        return self.choices.get(letter.strip().lower()) if isinstance(letter, str) else None

    def __repr__(self) -> str:
        lines = wrap(self.text, 90)
        for letter, choice in self.choices.items():
            lines += wrap(f"  {letter}) {choice}", 90, subsequent_indent="     ")
        return "\n".join(lines)
