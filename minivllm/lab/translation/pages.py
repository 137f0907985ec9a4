"""Pages: the texts in templates of HTML and in scripts, and the object of those in ``words.js``.

A message of HTML is what stands between two tags, in one line, or a label of a tag; what the
template fills in is a field in two braces. A message of a script is a literal that is marked,
``tr`step ${n} of ${last}```, and reads "step {n} of {last}"; a noun that ``plural`` counts is
"# noun", and what ``word`` and ``formed`` look up is itself. So English pages need no other file.

A translation whose fields or markup are not its message's is refused: a warning says so, and that
text stays English.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

Exchange = Callable[[str], str | None]  # from a message to what stands in its place; None: nothing

_MARKUP = re.compile(
    r"<(script|style|svg)\b.*?</\1>|<!--.*?-->|\{%.*?%\}|\{#.*?#\}|<[^>]*>", re.DOTALL
)
_LABEL = re.compile(
    r'(?:\b(?:aria-label|title|placeholder|alt)|name="description" content)="([^"]*)"'
)
_FIELD = re.compile(r"\{+[^{}]*\}+")
_NO_WORDS = re.compile(r"\{+[^{}]*\}+|&\w+;")
_WORD = re.compile(r"[A-Za-z]{2,}")

_MARKED = re.compile(r"\btr`([^`]*)`")
_VALUE = re.compile(r"\$\{([^{}]*)\}")
_COUNTED = re.compile(r'\bplural\((?:[^()"]|\([^()"]*\))*, "([^"]+)"\)')
_NAMED = re.compile(r'\b(?:word|formed)\("([^"]+)"')
_MARKS = set('<>"`')  # what would end a text in a page


def messages_of_page(path: Path) -> list[str]:
    """Messages of a file, in their order: of a template, or of a script."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".js":
        return list(dict.fromkeys(message for message, _ in _script_texts(source)))
    return list(dict.fromkeys(" ".join(source[a:b].split()) for a, b in _html_texts(source)))


def exchanged_html(source: str, exchange: Exchange) -> str:
    """A template with other texts."""
    for start, end in reversed(list(_html_texts(source))):
        text = _translation(" ".join(source[start:end].split()), exchange)
        if text is not None:
            source = source[:start] + text + source[end:]
    return source


def words(sources: Iterable[str], exchange: Exchange) -> dict[str, str]:
    """Texts of scripts by the English ones. Values are "{}" in these, and "{0}", "{1}" in those."""
    found: dict[str, str] = {}
    for source in sources:
        for message, key in _script_texts(source):
            text = _translation(message, exchange)
            if text is not None:
                fields = _FIELD.findall(message)
                found[key] = _FIELD.sub(lambda it, of=fields: f"{{{of.index(it[0])}}}", text)
    return found


def _translation(message: str, exchange: Exchange) -> str | None:
    text = exchange(message)
    if text is None:
        return None
    try:
        check_translation(message, text)
    except ValueError as error:
        warnings.warn(f"{error}; it stays English", stacklevel=2)
        return None
    return text


def check_translation(message: str, text: str) -> None:
    """Raise ``ValueError`` unless fields and markup of a translation are its message's."""
    more = [field for field in _FIELD.findall(text) if field not in _FIELD.findall(message)]
    more += sorted(_MARKS & set(text) - set(message))
    if more:
        raise ValueError(
            f"the translation {text!r} has {', '.join(more)}, which {message!r} has not"
        )


def _html_texts(source: str) -> Iterator[tuple[int, int]]:
    """Yield beginning and end of each text of a template, in their order."""
    end = 0
    for markup in _MARKUP.finditer(source):
        yield from _with_words(source, end, markup.start())
        if markup[0].startswith("<") and markup[1] is None:
            for label in _LABEL.finditer(source, markup.start(), markup.end()):
                yield from _with_words(source, *label.span(1))
        end = markup.end()
    yield from _with_words(source, end, len(source))


def _with_words(source: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """A piece of a template without the blanks around it, if it has words."""
    text = source[start:end]
    if _WORD.search(_NO_WORDS.sub("", text)):
        yield start + len(text) - len(text.lstrip()), start + len(text.rstrip())


def _script_texts(source: str) -> Iterator[tuple[str, str]]:
    """Messages of a script, each with the key by which the script asks for it."""
    for marked in _MARKED.finditer(source):
        yield _VALUE.sub(r"{\1}", marked[1]), _VALUE.sub("{}", marked[1])
    for noun in _COUNTED.findall(source):
        yield f"# {noun}", f"# {noun}"
    for word in _NAMED.findall(source):
        yield word, word
