"""CallForm: the syntax of a family's calls, and the grammar that enforces it.

(vLLM: the structural tags of vllm/tool_parsers/structural_tag_registry.py)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minivllm.structured_output.json_schema import without_annotations

_ANY_OBJECT = {"type": "object"}
_BLANKS = {"whitespace_pattern": " ?"}  # at most one between the tokens of a JSON text


@dataclass(frozen=True)
class CallForm:
    """Syntax of a call: ``before`` (in which %s is the name), arguments as JSON, ``after``."""

    before: str
    after: str
    separator: str  # between calls
    opening: str = ""  # between the trigger and the first call
    closing: str = ""  # after the last call
    trigger: str = ""  # text that must be followed by calls; empty: a call begins the message

    def grammar(
        self,
        tools: list[dict[str, Any]],
        *,
        forced: bool,
        parallel: bool,
        strict: Callable[[dict[str, Any]], bool],
        special_token_ids: dict[str, int],
    ) -> str:
        """The Lark grammar of a message.

        Args:
            tools: the tools, each ``{"name": ..., "parameters": a JSON schema}``.
            forced: at least one call, and no text; False: text, and calls in this syntax only.
            parallel: there may be several calls.
            strict: True for a tool whose arguments must satisfy its schema; the arguments of others
                are any JSON object.
            special_token_ids: special tokens in the syntax, which a grammar names by id.
        """

        def lark(text: str) -> str:
            parts = re.split("|".join(map(re.escape, special_token_ids)) or "(?!)", text)
            tokens = re.findall("|".join(map(re.escape, special_token_ids)) or "(?!)", text)
            out = [json.dumps(parts[0], ensure_ascii=False)] if parts[0] else []
            for token, part in zip(tokens, parts[1:], strict=True):
                out.append(f"<[{special_token_ids[token]}]>")
                if part:
                    out.append(json.dumps(part, ensure_ascii=False))
            return " ".join(out)

        rules = []
        for i, tool in enumerate(tools):
            schema = (tool.get("parameters") or _ANY_OBJECT) if strict(tool) else _ANY_OBJECT
            schema = {"x-guidance": _BLANKS, **without_annotations(schema)}
            before = (self.before % json.dumps(tool["name"])).removeprefix(self.trigger)
            rules.append(f"body_{i}: {lark(before)} args_{i} {lark(self.after)}")
            rules.append(f"args_{i}: %json {json.dumps(schema)}")
        anyone = "(" + " | ".join(f"body_{i}" for i in range(len(tools))) + ")"
        repeated = self.before.startswith(self.trigger)  # each call has its own trigger
        again = f"{lark(self.separator)} {lark(self.trigger) if repeated else ''} {anyone}"
        calls = f"{lark(self.opening)} {anyone} {f'({again})*' if parallel else ''}"
        calls += f" {lark(self.closing)}"
        if forced:
            start = f"{lark(self.trigger)} {calls}"
        elif not self.trigger:
            start = f"{calls} | PLAIN | "
            first = re.escape((self.opening + self.before)[0])
            rules.append(f"PLAIN: /[^{first}](.|\\n)*/")
        elif self.trigger in special_token_ids:
            start = f"(TEXT {lark(self.trigger)} {calls})* TEXT"
        else:  # lazy: the text ends at the first trigger
            start = f"(until {calls})* TEXT"
            rules.append(f"until[lazy]: TEXT {lark(self.trigger)}")
        if "TEXT" in start:
            rules.append("TEXT: /(.|\\n)*/")
        return "\n".join(["%llguidance {}", f"start: {start}", *rules])
