"""Texts of ``minivllm.lab`` and ``minivllm.course`` in another language than English.

English is what the code says. Another language is a catalogue, ``lab/locale/LANGUAGE/lab.po``: a
text is exchanged when its module is compiled (``importing``), so that the code needs no marks. No
other module of this folder is loaded while no language is set.
"""

TEXTS: dict[str, str] = {}  # by message, in the language that is set
PAGE_TEXTS: dict[str, str] = {}  # of HTML and scripts alone: a figure's label may be the same word


def translated(text: str) -> str:
    """A text that is data, or a single word of a figure, in the language that is set."""
    return TEXTS.get(text, text)


def of_a_page(message: str) -> str | None:
    """The text of a page's message; None in English, and where it stays as it is."""
    return PAGE_TEXTS.get(message, TEXTS.get(message))
