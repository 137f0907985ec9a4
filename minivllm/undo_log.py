"""UndoLog: the calls that undo one step, as a database's undo log.

Code that changes the books in a step notes here how to change them back. If the step fails, the
notes are followed, the last one first. Outside of a step nothing is noted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class UndoLog:
    """Calls that restore what a step has changed, in the order of the changes."""

    __slots__ = ("_calls", "recording")

    def __init__(self):
        self.recording = False
        self._calls: list[tuple[Callable, tuple]] = []

    def begin(self) -> None:
        """Begin a step: note calls from now on."""
        self._calls.clear()
        self.recording = True

    def commit(self) -> None:
        """Commit the step: delete the notes."""
        self.recording = False
        self._calls.clear()

    def roll_back(self) -> None:
        """Roll the step back: call the notes, the last one first."""
        self.recording = False
        while self._calls:
            function, arguments = self._calls.pop()
            function(*arguments)

    def note(self, function: Callable, *arguments: Any) -> None:
        """Note a call that takes back what is about to happen, or has just happened."""
        if self.recording:
            self._calls.append((function, arguments))

    # -- changes that note themselves --------------------------------------------------------------

    def set(self, owner: Any, name: str, value: Any) -> None:
        """``owner.name = value``"""
        self.note(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def insert(self, items: list, index: int, item: Any) -> None:
        """``items.insert(index, item)``"""
        items.insert(index, item)
        self.note(items.pop, index)

    def pop(self, items: list, index: int) -> Any:
        """``items.pop(index)``"""
        item = items.pop(index)
        self.note(items.insert, index, item)
        return item

    def put(self, table: dict, key: Any, value: Any) -> None:
        """``table[key] = value``, for a key that is not there."""
        table[key] = value
        self.note(table.pop, key)

    def take(self, table: dict, key: Any) -> Any:
        """``table.pop(key)``. Taken back, the key is the last one."""
        value = table.pop(key)
        self.note(table.__setitem__, key, value)
        return value
