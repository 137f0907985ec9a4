"""Cache: what is made of texts once, in the user's cache, by the content that it is made of."""

from __future__ import annotations

import marshal
import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any


def cache_folder() -> Path:
    """The folder of translated modules and catalogues: the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "minivllm" / "translated"


def kept(content: bytes, make: Callable[[], Any]) -> Any:
    """Return what ``make`` returns, made once for each content.

    Args:
        content: all that the result depends on.
        make: returns a code object, or what consists of tuples, dicts and strings. Its errors are
            raised, and nothing is kept then.
    """
    path = cache_folder() / f"{sha256(content).hexdigest()}.kept"
    with suppress(OSError, ValueError, EOFError, TypeError):
        return marshal.loads(path.read_bytes())
    made = make()
    with suppress(OSError):  # a folder that cannot be written costs time, and nothing else
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_bytes(marshal.dumps(made))
        new.replace(path)
    return made
