"""Exercises of notebook A4: which line of vLLM 0.32.0 decides this? Answered by file and symbol."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from random import Random
from typing import Any

from minivllm.course.asking.answers import NotYet
from minivllm.course.asking.exercise import Exercise, Folded, seeded
from minivllm.course.asking.texts import read_toml
from minivllm.lab.viz.draw.wording import wrap

MAP = "notebooks/guide/vllm-map.md"


@cache
def places() -> dict[str, list[dict[str, Any]]]:
    """The bank of questions by part: what is asked, file, symbols, because, and near misses."""
    return read_toml("chA4/places.toml")


class Places(Exercise):
    """An exercise whose answers are places in vLLM's source.

    Args:
        chosen: entries of the bank, by letter.
    """

    def __init__(self, chosen: dict[str, dict[str, Any]]):
        def answers(**asked):
            return {name: (one["file"], one["symbols"][0]) for name, one in chosen.items()}

        super().__init__(
            lambda answer, **_: _check(answer, chosen),
            f"The map ({MAP}) says in which file to look; then search it for a word of the "
            "question.",
            answers,
            "Which line of vLLM 0.32.0 decides each of these? Answer with a dict of pairs (file, "
            'symbol), such as {"a": ("vllm/v1/request.py", "Request.num_tokens")}.',
            {name: one["asked"] for name, one in chosen.items()},
        )
        self.chosen = chosen

    def show_help(self) -> Folded:
        """The hint, and each place with its reason, folded."""
        lines = [*wrap(self.why, 90), "", "answers"]
        lines += [
            f"{name}: {one['file']}: {one['symbols'][0]}\n   {one['because']}"
            for name, one in self.chosen.items()
        ]
        return Folded({"Hint": self.hint, "Solution": "\n".join(lines)})


def _draw(rng: Random, part: str, number: int) -> Exercise:
    return Places(dict(zip("abcd", rng.sample(places()[part], number), strict=False)))


@seeded(difficulty=3, minutes=20)
def way_in(rng: Random) -> Exercise:
    """From a call or an HTTP body to a request of the engine core."""
    return _draw(rng, "way_in", 4)


@seeded(difficulty=3, minutes=20)
def plan(rng: Random) -> Exercise:
    """Scheduling, blocks and the prefix cache."""
    return _draw(rng, "plan", 3)


@seeded(difficulty=4, minutes=20)
def way_out(rng: Random) -> Exercise:
    """From a sampled token to the end of a request."""
    return _draw(rng, "way_out", 3)


def _check(answer: Any, chosen: dict[str, dict[str, Any]]) -> str:
    example = '("vllm/v1/request.py", "Request.num_tokens")'
    if not isinstance(answer, Mapping) or set(answer) != set(chosen):
        raise NotYet(f"give a dict with {', '.join(chosen)}, each a pair such as {example}.")
    for name, place in answer.items():
        ok = isinstance(place, (tuple, list)) and len(place) == 2
        if not ok or not all(isinstance(text, str) for text in place):
            raise NotYet(f"{name}: give a pair of texts, such as {example}.")
        _check_place(name, *place, chosen[name])
    return " ".join(f"{name}: {one['because']}" for name, one in chosen.items())


def _check_place(name: str, file: str, symbol: str, right: dict[str, Any]) -> None:
    if symbol.endswith(".py"):
        raise NotYet(f"{name}: the file comes first, then the symbol.")
    symbol = symbol.strip().removesuffix("()")
    if _is_one_of(symbol, right["symbols"]):
        if not right["file"].endswith(file.strip().lstrip("/")) or not file.strip():
            raise NotYet(f"{name}: {symbol} is right; it is in another file than {file}.")
        return
    for near, reason in right["near"].items():
        if _is_one_of(symbol, [near]):
            raise NotYet(f"{name}: not {symbol}: {reason}.")
    if right["file"].endswith(file.strip().lstrip("/")) and file.strip():
        raise NotYet(f"{name}: the file is right; {symbol} is another place in it.")
    raise NotYet(
        f"{name}: {file} does not decide this.", f"{name}: look in {right['file']}, not in {file}."
    )


def _is_one_of(symbol: str, known: list[str]) -> bool:
    """True for a symbol's whole name, or its last part."""
    return bool(symbol) and any(symbol in (one, one.rpartition(".")[2]) for one in known)
