"""Content format of a chat template: it reads a message's content as text, or as parts.

(vLLM: --chat-template-content-format; ``_detect_content_format`` in vllm/renderers/hf.py)
"""

from __future__ import annotations

import re
from functools import lru_cache

from jinja2 import TemplateSyntaxError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

CONTENT_FORMATS = ("auto", "string", "openai")
_GENERATION = re.compile(r"{%-?\s*(end)?generation\s*-?%}")  # a tag of transformers, which
# jinja2 does not know; it marks the generated text, and does not matter here


@lru_cache(maxsize=32)  # requests may bring templates
def detect_content_format(chat_template: str) -> str:
    """ "openai" for a template that loops over the parts of a message's content, else "string".

    A template is a program, so this looks for the loops that people write: over ``content``, over
    a message's ``content``, and in a macro over a parameter that gets one.
    """
    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
    try:
        root = environment.parse(_GENERATION.sub("", chat_template))
    except TemplateSyntaxError:
        return "string"  # rendering reports the error
    messages = _messages(root)
    in_macros: set[nodes.For] = set()
    for macro in root.find_all(nodes.Macro):
        given = _given_content(root, macro, messages)
        loops = list(macro.find_all(nodes.For))
        in_macros.update(loops)
        if any(_is_name(loop.iter, given) for loop in loops):
            return "openai"
    for loop in root.find_all(nodes.For):
        named = loop not in in_macros and _is_name(loop.iter, {"content"})
        if named or _is_content(loop.iter, messages):
            return "openai"
    return "string"


def _messages(root: nodes.Template) -> set[str]:
    """Names of single messages: variables of loops over ``messages``, or over a part of them."""
    lists = {"messages"}
    known = 0
    while len(lists) > known:  # {% set rest = messages[1:] %}, and names made from it
        known = len(lists)
        for assignment in root.find_all(nodes.Assign):
            if isinstance(assignment.target, nodes.Name) and _is_name(assignment.node, lists):
                lists.add(assignment.target.name)
    return {
        loop.target.name
        for loop in root.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and _is_name(loop.iter, lists)
    }


def _given_content(root: nodes.Template, macro: nodes.Macro, messages: set[str]) -> set[str]:
    """Names of a macro's parameters that are a message's content in some call of it."""
    names = [parameter.name for parameter in macro.args]
    given: set[str] = set()
    for call in root.find_all(nodes.Call):
        if _is_name(call.node, {macro.name}):
            pairs = [*zip(names, call.args, strict=False)]
            pairs += [(keyword.key, keyword.value) for keyword in call.kwargs]
            given.update(name for name, value in pairs if _is_content(value, messages))
    return given


def _bare(node: nodes.Node | None) -> nodes.Node | None:
    """An expression without its filters, tests and slices."""
    while isinstance(node, (nodes.Filter, nodes.Test)) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    return node


def _is_name(node: nodes.Node | None, names: set[str]) -> bool:
    bare = _bare(node)
    return isinstance(bare, nodes.Name) and bare.name in names


def _is_content(node: nodes.Node, messages: set[str]) -> bool:
    """True for ``message.content`` and ``message["content"]``."""
    bare = _bare(node)
    if isinstance(bare, nodes.Getattr):
        return bare.attr == "content" and _is_name(bare.node, messages)
    if isinstance(bare, nodes.Getitem) and isinstance(bare.arg, nodes.Const):
        return bare.arg.value == "content" and _is_name(bare.node, messages)
    return False
