"""Futures of calls to workers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def completed(function: Callable[[], Result]) -> Future[Result]:
    """Call a function at once; returns a Future of its result, or of what it raised."""
    future: Future[Result] = Future()
    try:
        future.set_result(function())
    except Exception as error:
        future.set_exception(error)
    return future


class LazyFuture(Future[Result]):
    """Future whose result is fetched by the first call of ``result``.

    Args:
        fetch: takes the seconds to wait at most (None: as long as it takes), returns the result.
    """

    def __init__(self, fetch: Callable[[float | None], Result]):
        super().__init__()
        self._fetch = fetch

    def result(self, timeout: float | None = None) -> Result:
        """Return the result. Raises what fetching it raises."""
        if not self.done():
            try:
                self.set_result(self._fetch(timeout))
            except TimeoutError:  # it may still come
                raise
            except Exception as error:
                self.set_exception(error)
        return super().result()
