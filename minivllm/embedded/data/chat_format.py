"""ChatML with tools in the Qwen/Hermes form: the Jinja template, and the same text from Python."""

import json
from importlib.resources import files

from minivllm.embedded.data.lists import load_lists

_TEXTS = load_lists(__package__, "chat_format")
TOOLS_BEFORE: str = _TEXTS.tools_before
TOOLS_AFTER: str = _TEXTS.tools_after


def chat_template(name: str = "chat_template") -> str:
    """The Jinja template that goes into tokenizer_config.json.

    ``"picture_chat_template"`` takes a message's content in parts, too; a picture is one of them.
    """
    template = files(__package__).joinpath(f"{name}.jinja").read_text(encoding="utf-8")
    for mark, text in (("TOOLS_BEFORE", TOOLS_BEFORE), ("TOOLS_AFTER", TOOLS_AFTER)):
        template = template.replace(mark, repr(text))
    return template.strip()


def tools_section(tools: list[dict]) -> str:
    """The tools' part of a system turn; a system prompt stands before it, with a blank line."""
    listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
    return TOOLS_BEFORE + listed + TOOLS_AFTER


def tool_call(name: str, arguments: dict) -> str:
    """The answer that calls a tool."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def tool_response(result: dict) -> str:
    """The content of the user turn that carries a tool's result."""
    return f"<tool_response>\n{json.dumps(result, ensure_ascii=False)}\n</tool_response>"
