"""Terms and their words in a language: ``python notebooks/terms.py zh`` says where one is missing.

``minivllm/lab/locale/zh/terms.toml`` is the one list. The glossary's column follows it, and where
an English text has a term, its translation has one of the words for it. What is found is to be
looked at: a term may mean something else there, or be clear from the sentence before.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import polib
import typer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "guide"))
from check_terms import pattern  # noqa: E402

from minivllm.lab.translation.catalogue import KEPT, LOCALE  # noqa: E402
from minivllm.utils.toml_data import tomllib  # noqa: E402

_TERM = re.compile(r"^[^|]+ \| ")  # of a row of the glossary, which names it in English
_NO_TEXT = re.compile(r"`[^`]*`|\]\([^)]*\)|\{[^{}]*\}")  # names, addresses, expressions


@cache
def terms_of(language: str) -> dict[str, list[str]]:
    """The words for each term; the first are the glossary's."""
    return _read(language)["terms"]


@cache
def exceptions_of(language: str) -> dict[str, list[str]]:
    """By term, beginnings of the English texts whose translations rightly lack its words."""
    return _read(language)["except"]


def _read(language: str) -> dict:
    return tomllib.loads((LOCALE / language / "terms.toml").read_text(encoding="utf-8"))


@cache
def _any_term(language: str) -> tuple[re.Pattern[str], list[str]]:
    """A pattern of all terms, the longest first, and the term of each of its groups."""
    terms = sorted(terms_of(language), key=len, reverse=True)
    said = "|".join(f"({pattern(term)})" for term in terms)
    return re.compile(said, re.IGNORECASE), terms


def terms_in(text: str, language: str) -> set[str]:
    """The terms that an English text has; "block" is none in "block table"."""
    any_term, terms = _any_term(language)
    return {terms[found.lastindex - 1] for found in any_term.finditer(_NO_TEXT.sub(" ", text))}


def words_of(term: str, language: str) -> list[str]:
    """What a translation may say for a term: what is in brackets only explains."""
    return [re.sub(r"（[^）]*）", "", word).lower() for word in terms_of(language)[term]]


def missing_terms(message: str, text: str, language: str) -> Iterator[str]:
    """Yield the terms of a message of whose words none is in its translation."""
    said = text.lower()
    for term in sorted(terms_in(message, language)):
        if any(message.startswith(each) for each in exceptions_of(language).get(term, [])):
            continue
        if not any(word in said for word in words_of(term, language)):
            yield term


def findings(path: Path, language: str) -> list[tuple[str, str, str]]:
    """The missing terms of a PO file, each with its message and translation."""
    is_glossary = path.stem == "glossary"
    return [
        (term, entry.msgid, entry.msgstr)
        for entry in translations(path)
        for term in missing_terms(
            _TERM.sub("", entry.msgid) if is_glossary else entry.msgid, entry.msgstr, language
        )
    ]


def translations(path: Path) -> list[polib.POEntry]:
    """The entries of a PO file that are translated."""
    entries = polib.pofile(str(path))
    return [it for it in entries if it.msgstr and not it.fuzzy and KEPT not in it.flags]


def main(language: str) -> None:
    """List the translations that lack the words of their terms."""
    for path in [LOCALE / language / "lab.po", *sorted((HERE / language).rglob("*.po"))]:
        for term, message, text in findings(path, language):
            print(f"{path.name}: {term} ({', '.join(terms_of(language)[term])})")
            print(f"    {message}\n    {text}")


if __name__ == "__main__":
    typer.run(main)
