"""Catalogue: translations of messages, read from a PO file.

PO is the format that translators' tools know. A message is its own key, so that a changed one is
found by itself; a translation of an older text is marked ``fuzzy``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from minivllm.lab.translation.cache import kept

PAGES = (".html", ".js")  # files whose messages are a page's
KEPT = "no-translate"  # the flag of a text that is a key, a format, or what the model reads
_FORM = b"2"  # of what is kept of a file
LOCALE = Path(__file__).parents[1] / "locale"


def languages() -> list[str]:
    """Languages beside English."""
    return sorted(path.parent.name for path in LOCALE.glob("*/lab.po"))


def _read(text: str) -> tuple[dict[str, str], dict[str, str], list[str], list[str]]:
    """Translations, those of pages alone, fuzzy messages and kept ones of a PO file's text."""
    import polib  # only where a language is set, and the file is new

    texts: dict[str, str] = {}
    page_texts: dict[str, str] = {}
    fuzzy: list[str] = []
    kept_texts: list[str] = []
    for entry in polib.pofile(text):
        if entry.obsolete:
            continue
        if KEPT in entry.flags:
            kept_texts.append(entry.msgid)
        elif entry.msgstr:
            places = [place for place, _ in entry.occurrences]
            is_of_page = bool(places) and all(place.endswith(PAGES) for place in places)
            (page_texts if is_of_page else texts)[entry.msgid] = entry.msgstr
            if entry.fuzzy:
                fuzzy.append(entry.msgid)
    return texts, page_texts, fuzzy, kept_texts


@dataclass
class Catalogue:
    """Translations of messages into one language.

    Args:
        texts: by message; none for those that are not translated, or stay as they are.
        page_texts: the same, of messages that are in pages alone.
        fuzzy: messages whose translation is of an older text.
        kept: messages that stay as they are.
        digest: of the file.
    """

    texts: dict[str, str] = field(default_factory=dict)
    page_texts: dict[str, str] = field(default_factory=dict)
    fuzzy: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    digest: bytes = b""

    @classmethod
    def read(cls, path: Path) -> Catalogue:
        """Read a PO file.

        Raises:
            ValueError: if it is none, or is not there; it names the file.
        """
        try:
            data = path.read_bytes()
            texts, page_texts, fuzzy, kept_texts = kept(
                _FORM + data, lambda: _read(data.decode("utf-8"))
            )
        except ImportError as error:
            how = "pip install 'minivllm[notebooks]'"
            raise ValueError(f"a catalogue needs polib: {how}") from error
        except (OSError, ValueError) as error:
            raise ValueError(f"the catalogue {path} cannot be read: {error}") from error
        digest = sha256(data).digest()
        return cls(texts, page_texts, set(fuzzy), set(kept_texts), digest)

    @classmethod
    def of(cls, language: str) -> Catalogue:
        """The catalogue of ``minivllm.lab`` and ``minivllm.course``.

        Raises:
            ValueError: for a language that is not there, or a file that cannot be read.
        """
        if language not in languages():
            known = ", ".join(["en", *languages()])
            raise ValueError(f"language must be one of {known}, got {language!r}")
        return cls.read(LOCALE / language / "lab.po")
