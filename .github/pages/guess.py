"""A guess: the cell in which a reader writes one becomes a form, and its answer is folded."""

import ast
import re
from html import escape

from minivllm.lab.translation import translated


def guess_of(source: str) -> str | None:
    """A form for the names that a cell gives a value to; None if the cell does anything else."""
    tree = ast.parse(source).body
    if len(tree) != 1 or not isinstance(tree[0], ast.Assign) or len(tree[0].targets) != 1:
        return None
    target, value = tree[0].targets[0], tree[0].value
    names = [target] if isinstance(target, ast.Name) else getattr(target, "elts", [])
    if not names or not all(isinstance(it, ast.Name) and it.id.startswith("my_") for it in names):
        return None
    values = [value] if len(names) == 1 else getattr(value, "elts", [])
    fields = "".join(map(field, names, values))
    hint = re.search(r"\s# (?!yours\?)(.+)$", source)
    told = f"<small>{escape(hint[1])}</small>" if hint else ""
    return (
        f'<form class="guess"><p>{translated("Your guess, before you read on:")}</p>{fields}{told} '
        f'<button type="submit">{translated("Show the answer")}</button> '
        '<span role="status"></span></form>'
    )


def field(name: ast.Name, value: ast.expr) -> str:
    """A line for one of them: Python, as in the cell, and what stands there is an example."""
    text = escape(ast.unparse(value))
    size = min(48, max(6, len(text)))
    return (
        f'<label><code>{name.id} =</code> <input name="{name.id}" value="{text}" size="{size}" '
        'autocomplete="off" spellcheck="false"></label> '
    )


def with_fold(text: str) -> str:
    """The text behind an answer, which often tells it: folded up to its first heading."""
    told, heading, rest = text.partition("\n#") if not text.startswith("#") else ("", "", text)
    if not told:
        return text
    return (
        f"<div data-told></div>\n\n{told}\n\n<div data-told-end></div>\n\n{heading.strip()}{rest}"
    )


def folded(html: str) -> str:
    """HTML in which the marks of ``with_fold`` have become a <details>."""
    why = f'<details class="told"><summary>{translated("Why")}</summary>'
    html = html.replace("<div data-told></div>", why)
    return html.replace("<div data-told-end></div>", "</details>")
