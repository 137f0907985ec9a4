"""Peers: other engines on the same seeded work, each in a Python of its own.

A peer is a process that stays loaded (``peer_process.py``) and answers the same requests when it is
asked, so that it and ours can take turns. Two engines never compute at the same time.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minivllm.lab.bench.workloads import Round
from minivllm.utils.validation import check

ENGINES = ("openvino", "llama", "vllm")
CONVERTED = ("openvino", "llama")  # these read a form of the model of their own
_SCRIPT = Path(__file__).with_name("peer_process.py")


class PeerError(RuntimeError):
    """A peer that could not be loaded, or has ended."""


@dataclass(frozen=True)
class PeerPlace:
    """Place of an engine: its Python, and its own form of the model, if it needs one."""

    engine: str
    python: Path
    model: Path | None

    @classmethod
    def parse(cls, text: str) -> PeerPlace:
        """Read ``ENGINE=PYTHON`` or ``ENGINE=PYTHON,MODEL``.

        Raises:
            ValueError: for another engine, or a Python that is not there.
        """
        engine, _, places = text.partition("=")
        check(engine in ENGINES, "peer", text, f"{' or '.join(ENGINES)}=PYTHON[,MODEL]")
        python, _, model = places.partition(",")
        check(os.access(python, os.X_OK), "peer", text, "a Python that can be run")
        return cls(engine, Path(python), Path(model) if model else None)


def places_of(against: str, peers: Sequence[str]) -> tuple[list[PeerPlace], list[str]]:
    """Places of the engines that are named, and a line for each that is left out.

    Raises:
        ValueError: for an engine that is not known, or that has a place and is not named.
    """
    names = [name for name in against.split(",") if name]
    for name in names:
        check(name in ENGINES, "against", against, f"some of {', '.join(ENGINES)}")
    places = {place.engine: place for place in map(PeerPlace.parse, peers)}
    for engine in places:
        check(engine in names, "against", against, f"the engine of --peer {engine}, too")
    found: list[PeerPlace] = []
    left_out: list[str] = []
    for name in names:
        place = places.get(name)
        if place is None:
            left_out.append(f"{name} is left out: --peer {name}=PYTHON says where it is.")
        elif name in CONVERTED and place.model is None:
            left_out.append(f"{name} is left out: it needs --peer {name}=PYTHON,MODEL.")
        else:
            found.append(place)
    return found, left_out


class Peer:
    """An engine in a process of its own, loaded.

    Args:
        place: where it is.
        options: what it loads with: see ``peer_process.py``.

    Raises:
        PeerError: if it cannot be loaded.
    """

    def __init__(self, place: PeerPlace, options: dict[str, Any]):
        self.engine = place.engine
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [place.python, _SCRIPT, place.engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=kept | {"OMP_NUM_THREADS": str(options["threads"])},
        )
        model = options["model"] if place.model is None else str(place.model.resolve())
        self._ask(options | {"model": model})

    def run(self, rounds: list[Round]) -> float:
        """Answer all rounds. Returns the seconds.

        Raises:
            PeerError: if it has ended, or has made another number of tokens.
        """
        asked = [[(r.prompt_token_ids, r.max_tokens) for r in requests] for requests in rounds]
        answer = self._ask(asked)
        expected = [r.max_tokens for requests in rounds for r in requests]
        if answer["num_tokens"] != expected:
            raise PeerError(f"{self.engine} made other numbers of tokens than it was asked for")
        return answer["seconds"]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, question: Any) -> dict[str, Any]:
        """Send a line and return the answer; other lines that an engine prints are passed over."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None, "it is a pipe"
        assert stdout is not None, "it is a pipe"
        try:
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, which reading tells
        for line in stdout:
            if line.startswith("PEER "):
                answer = json.loads(line.removeprefix("PEER "))
                if "error" in answer:
                    self.close()
                    raise PeerError(f"{self.engine} failed: {answer['error']}")
                return answer
        self.close()
        raise PeerError(f"{self.engine} has ended with exit status {self._process.returncode}")
