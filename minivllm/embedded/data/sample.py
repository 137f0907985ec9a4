"""Sample: a training text, the weights of its loss, and its attention pointers.

Everything is in characters; `encoding.py` turns it into tokens. A *pointer* says that, at some
place of the text, the model should attend to another place. Since the text is generated, the
right place is known exactly, and training can supervise attention with it.
"""

from dataclasses import dataclass, field

Span = tuple[int, int]
"""Start and end of a stretch of text, in characters."""


@dataclass(frozen=True)
class Copy:
    """The text at `target` repeats the text at `source`, token by token.

    While a token of `target` is being predicted, attention belongs on its twin in `source`. With
    `closes`, the end of the copy points to whatever follows the source: that is how the model
    notices that the cell is finished.
    """

    kind: str
    target: Span
    source: Span
    closes: bool = False


@dataclass(frozen=True)
class Gather:
    """Every token of `target` should collect what the tokens of `source` say, evenly."""

    kind: str
    target: Span
    source: Span


@dataclass
class Sample:
    """A text under construction, with the stretches that carry loss and the pointers."""

    skill: str
    text: str = ""
    learnt: list[tuple[Span, float]] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    gathers: list[Gather] = field(default_factory=list)
    rows: list[Span] = field(default_factory=list)
    """The rows of a table, without its header."""
    answers: list[tuple[str, Span]] = field(default_factory=list)
    """What an evaluation scores, each with a label; the closing token is part of the answer."""

    def add(self, text: str, weight: float = 0.0) -> Span:
        """Append text, learnt with this weight (0: only read); returns where it lies."""
        span = (len(self.text), len(self.text) + len(text))
        self.text += text
        if weight and text:
            self.learnt.append((span, weight))
        return span

    def turn(self, role: str, content: str) -> Span:
        """Append a finished ChatML turn that is only read; returns where its content lies."""
        self.add(f"<|im_start|>{role}\n")
        span = self.add(content)
        self.add("<|im_end|>\n")
        return span

    def answer(self, content: str, label: str = "") -> Span:
        """Append a learnt assistant turn, scored under `label`; returns where its content lies."""
        self.add("<|im_start|>assistant\n")
        span = self.add(content, 1.0)
        closing = self.add("<|im_end|>", 1.0)
        self.answers.append((label or self.skill, (span[0], closing[1])))
        self.add("\n")
        return span

    def copied_spans(self) -> list[Span]:
        """The rows of tables, and both ends of every copy."""
        ends = [span for copy in self.copies for span in (copy.target, copy.source)]
        return self.rows + ends

    def copied_from(self, kind: str, value: str, within: Span, source: Span) -> None:
        """Note that the first occurrence of `value` in `within` is copied from `source`'s first."""
        target_at = self.text.find(value, *within)
        source_at = self.text.find(value, *source)
        if target_at >= 0 and source_at >= 0:
            size = len(value)
            target = (target_at, target_at + size)
            origin = (source_at, source_at + size)
            self.copies.append(Copy(kind, target, origin))
