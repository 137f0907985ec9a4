"""Import of ``minivllm.lab`` and ``minivllm.course`` in a language: texts are exchanged on the way.

A module is compiled from a tree in which its messages are those of the catalogue, and the result is
kept in the user's cache, by the content of module and catalogue. Source files stay English, and so
does all that is printed from them, such as a listing.
"""

from __future__ import annotations

import ast
import os
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType, ModuleType

from minivllm.lab.translation import PAGE_TEXTS, TEXTS, messages
from minivllm.lab.translation.cache import kept
from minivllm.lab.translation.catalogue import Catalogue
from minivllm.lab.translation.messages import Exchanged

PACKAGES = ("minivllm.lab", "minivllm.course")
_OWN = __package__ or ""


@cache
def _exchange_digest() -> bytes:
    """Digest of the module that exchanges texts: it makes the code, too."""
    return sha256(Path(messages.__file__).read_bytes()).digest()


def compile_translated(source: bytes, path: str, catalogue: Catalogue) -> CodeType:
    """Compile a module with the texts of a catalogue.

    Raises:
        ValueError: for a translation with expressions that its message has not.
    """
    tree = ast.parse(source, path)
    try:
        tree = Exchanged(tree, catalogue.texts.get).visit(tree)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return compile(tree, path, "exec", dont_inherit=True)


class TranslatingLoader(SourceFileLoader):
    """Loads a module with the texts of a catalogue, compiled once for each content."""

    def __init__(self, name: str, path: str, catalogue: Catalogue):
        super().__init__(name, path)
        self._catalogue = catalogue

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path)
        made_by = MAGIC_NUMBER + _exchange_digest() + self._catalogue.digest
        content = made_by + self.path.encode() + source

        def make() -> CodeType:
            return compile_translated(source, self.path, self._catalogue)

        try:
            return kept(content, make)
        except ValueError as error:
            warnings.warn(f"{error}; the texts of {fullname} stay English", stacklevel=2)
            return super().get_code(fullname)


class TranslatingFinder(MetaPathFinder):
    """Finds modules of ``PACKAGES``, and has them loaded in a language."""

    def __init__(self, language: str, catalogue: Catalogue):
        self.language = language
        self.catalogue = catalogue

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not _is_translated(fullname):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = TranslatingLoader(fullname, str(spec.origin), self.catalogue)
        return spec


def _is_translated(fullname: str) -> bool:
    inside = any(fullname == each or fullname.startswith(f"{each}.") for each in PACKAGES)
    return inside and not fullname.startswith(_OWN)


def set_language(language: str) -> None:
    """Set the language of exercises, figures and reports: "en", or one that has a catalogue.

    Call it before they are imported; the environment variable ``MINIVLLM_LANG`` does so by itself.

    Raises:
        ValueError: for a language that is not there, a catalogue that is broken, or if modules
            were imported in another language already.
    """
    if language == current_language():
        return
    finder = None if language == "en" else TranslatingFinder(language, Catalogue.of(language))
    light = {*PACKAGES, *(name for name in sys.modules if name.startswith(_OWN))}
    loaded = [name for name in sys.modules if _is_translated(name) and name not in light]
    if loaded:
        raise ValueError(
            f"the language is set before {loaded[0]} is imported; restart the kernel, and call "
            f"set_language({language!r}) first"
        )
    for old in [each for each in sys.meta_path if isinstance(each, TranslatingFinder)]:
        sys.meta_path.remove(old)
    TEXTS.clear()
    PAGE_TEXTS.clear()
    if finder is not None:
        TEXTS.update(finder.catalogue.texts)
        PAGE_TEXTS.update(finder.catalogue.page_texts)
        sys.meta_path.insert(0, finder)


def set_language_of_environment() -> None:
    """Set the language of ``MINIVLLM_LANG``; what is wrong with it is a warning, in English."""
    try:
        set_language(os.environ["MINIVLLM_LANG"] or "en")
    except ValueError as error:
        warnings.warn(f"MINIVLLM_LANG: {error}", stacklevel=2)


def _finder() -> TranslatingFinder | None:
    return next((each for each in sys.meta_path if isinstance(each, TranslatingFinder)), None)


def current_language() -> str:
    """The language that is set."""
    finder = _finder()
    return "en" if finder is None else finder.language
