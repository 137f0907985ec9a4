"""Flags of ``minivllm serve``: vLLM's, in either spelling, from the command line or a file.

(vLLM 0.6.6: vllm/entrypoints/openai/cli_args.py; 0.32: vllm/utils/argparse_utils.py)
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import yaml

from minivllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from minivllm.entrypoints.chat_content_format import CONTENT_FORMATS
from minivllm.entrypoints.openai.tool_choice import STRICT_LEVELS
from minivllm.entrypoints.openai.tool_parsers import ToolParserManager

# Flags of vLLM's server that we have not, and why.
_TLS = "a proxy in front does TLS better"
_ADAPTERS = "there are no adapters yet"
_FOREIGN = "no code from elsewhere is run"
_NOT_HERE = {
    "--api-server-count": "one process answers",
    "--async-scheduling": "a step is planned when the one before it is over",
    "--data-parallel-size": "there is one engine",
    "--disable-access-log-for-endpoints": "--disable-uvicorn-access-log is, for all of them",
    "--disable-frontend-multiprocessing": "the engine has a process only with --engine-process",
    "--disable-log-requests": "requests are logged only with --enable-log-requests",
    "--distributed-executor-backend": "one process computes",
    "--enable-expert-parallel": "one process computes",
    "--enable-sleep-mode": "an engine that is not needed is ended",
    "--h11-max-header-count": "uvicorn's own limit holds",
    "--h11-max-incomplete-event-size": "uvicorn's own limit holds",
    "--kv-cache-dtype": "K and V have the model's dtype",
    "--limit-mm-per-prompt": "there are no pictures yet",
    "--lora-modules": _ADAPTERS,
    "--max-loras": _ADAPTERS,
    "--max-lora-rank": _ADAPTERS,
    "--max-num-queued-tokens": "requests are counted; see --max-num-queued-reqs",
    "--middleware": _FOREIGN,
    "--reasoning-parser": "no part of an answer is taken for reasoning",
    "--runner": "models generate text, and do nothing else yet",
    "--speculative-mode": "drafts of n-grams are --speculative-model [ngram]",
    "--sse-keep-alive-interval": "a stream says nothing between two tokens",
    "--ssl-ca-certs": _TLS,
    "--ssl-cert-reqs": _TLS,
    "--ssl-certfile": _TLS,
    "--ssl-keyfile": _TLS,
    "--tool-parser-plugin": _FOREIGN,
    "-tp": "it is --tensor-parallel-size, and must be 1 so far",
}
_PROGRAMS_ONLY = {"kv_cache_manager_cls", "model"}  # a class, and what has an argument of its own


class _Refused(argparse.Action):
    """A flag of vLLM's that is refused, with the reason, which is its ``const``."""

    def __call__(self, parser, namespace, values, option_string=None):
        parser.error(f"{option_string} is not there: {self.const}")


class FlexibleArgumentParser(argparse.ArgumentParser):
    """argparse, but ``--max_num_seqs`` is ``--max-num-seqs``, and ``--config`` names a YAML file.

    What the file says comes before the typed words, so these win.
    """

    def parse(self, args: list[str]) -> argparse.Namespace:
        """The values of these words. A wrong one ends the program with a sentence, as argparse."""
        return self.parse_args(self._with_file([self._dashes(word) for word in args]))

    def refuse(self, reasons: dict[str, str]) -> None:
        """Flags that end the program with the reason why they are not there."""
        for flag, reason in reasons.items():
            self.add_argument(
                flag, nargs="*", action=_Refused, const=reason, help=argparse.SUPPRESS
            )

    @staticmethod
    def _dashes(word: str) -> str:
        name, equals, value = word.partition("=")
        return name.replace("_", "-") + equals + value if name.startswith("--") else word

    def _with_file(self, words: list[str]) -> list[str]:
        for index, word in enumerate(words):
            if word == "--config" or word.startswith("--config="):
                value = word.partition("=")[2]
                if not value and index + 1 == len(words):
                    self.error("--config needs the name of a YAML file")
                path, length = (value, 1) if value else (words[index + 1], 2)
                rest = words[:index] + words[index + length :]
                if any(word.partition("=")[0] == "--config" for word in rest):
                    self.error("--config can be given once")
                first = [rest.pop(0)] if rest and not rest[0].startswith("-") else []
                return first + self._words_of(path) + rest
        return words

    def _words_of(self, path: str) -> list[str]:
        if Path(path).suffix not in (".yaml", ".yml"):
            self.error(f"--config must be a .yaml or .yml file, got {path!r}")
        try:
            settings = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
        except (OSError, yaml.YAMLError) as error:
            self.error(f"--config {path} cannot be read: {error}")
        if not isinstance(settings, dict):
            self.error(f"--config {path} must hold names and values, as host: 127.0.0.1")
        words: list[str] = []
        for key, value in settings.items():
            flag = "--" + str(key).replace("_", "-")
            action = self._option_string_actions.get(flag)
            nargs = None if action is None else action.nargs
            if nargs == 0 and value is not None and not isinstance(value, bool):
                self.error(f"--config {path}: {key} must be true or false, got {value!r}")
            if isinstance(value, bool):
                no = "--no-" + flag[2:]
                known = flag if value else no
                words += [known] if value or no in self._option_string_actions else []
            elif isinstance(value, list) and nargs is not None:
                words += [flag, *(str(one) for one in value)]
            elif isinstance(value, (list, dict)):
                words += [flag, json.dumps(value)]
            elif value is not None:
                words += [flag, str(value)]
        return words


def _size(text: str) -> int:
    """An integer, also as vLLM's people write it: 1k is 1000, 1K is 1024, and so m, M, g, G."""
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kKmMgG]?)", text)
    if match is None or ("." in match[1] and not match[2]):
        raise argparse.ArgumentTypeError(f"an integer, or one like 8k or 8K, not {text!r}")
    unit = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
    return int(float(match[1]) * unit[match[2]]) if match[2] else int(match[1])


def _optional_text(text: str) -> str | None:
    return None if text.lower() == "none" else text


_PARSERS: dict[str, Any] = {
    "int": _size, "float": float, "str": _optional_text, "dict": json.loads, "Any": str,
}  # fmt: skip


def _engine_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for every field of ``AsyncEngineArgs``; its comment is the help."""
    source = inspect.getsource(EngineArgs) + inspect.getsource(AsyncEngineArgs)
    notes = dict(re.findall(r"^    (\w+): [^#\n]*  # (.*)$", source, re.MULTILINE))
    group = parser.add_argument_group("engine", "what runs and within which limits")
    for field in fields(AsyncEngineArgs):
        if field.name in _PROGRAMS_ONLY:
            continue
        flag = "--" + field.name.replace("_", "-")
        default = None if field.default is MISSING else field.default
        note = notes.get(field.name, "").replace("%", "%%")
        text = f"{note} (default: {default})".strip()
        if field.type == "bool":
            action = argparse.BooleanOptionalAction
            group.add_argument(flag, action=action, default=default, help=text)
        else:
            kind = _PARSERS[field.type.split(" | ")[0]]
            group.add_argument(flag, type=kind, default=default, metavar="X", help=text)


def _front_flags(parser: argparse.ArgumentParser) -> None:
    yes: dict[str, Any] = {"action": argparse.BooleanOptionalAction, "default": False}
    group = parser.add_argument_group("socket", "where the server listens")
    group.add_argument("--host", help="address (default: all of them)")
    group.add_argument("--port", type=int, default=8000, help="port (default: 8000)")
    group.add_argument("--uds", metavar="PATH", help="a Unix socket instead of host and port")
    group.add_argument("--root-path", default="", help="what a proxy puts before the paths")
    group.add_argument(
        "--shutdown-timeout", type=float, default=0, metavar="SECONDS",
        help="how long a signal to end waits for running requests (default: 0, they are aborted)",
    )  # fmt: skip
    group = parser.add_argument_group("guard", "who may ask, and how much")
    group.add_argument(
        "--api-key", nargs="+", metavar="KEY",
        help="keys, one of which paths under /v1 want; also MINIVLLM_API_KEY",
    )  # fmt: skip
    for name, default in (("origins", []), ("methods", ["*"]), ("headers", ["*"])):
        group.add_argument(
            f"--allowed-{name}", type=json.loads, default=default, metavar="JSON",
            help=f"of pages from elsewhere (CORS), a list as JSON (default: {default})",
        )  # fmt: skip
    group.add_argument("--allow-credentials", **yes, help="CORS: with cookies")
    group.add_argument(
        "--max-num-queued-reqs", type=int, metavar="N",
        help="most requests that run or wait; more get status 503 (default: no limit)",
    )  # fmt: skip
    group = parser.add_argument_group("answers", "what requests may say and answers hold")
    group.add_argument("--served-model-name", nargs="+", metavar="NAME",
                       help="names of the model; the first is in answers")  # fmt: skip
    group.add_argument("--chat-template", help="a file, or the template in one line")
    group.add_argument("--chat-template-content-format", choices=CONTENT_FORMATS, default="auto",
                       help="a message's content for templates: one text, or parts")  # fmt: skip
    group.add_argument("--default-chat-template-kwargs", type=json.loads, default={},
                       metavar="JSON", help="for the template; a request's win")  # fmt: skip
    group.add_argument("--trust-request-chat-template", **yes,
                       help="a request may bring its own template")  # fmt: skip
    group.add_argument("--response-role", default="assistant", help="who answers in a chat")
    group.add_argument("--generation-config", choices=("auto", "vllm"), default="auto",
                       help="'vllm': without the model's generation_config.json")  # fmt: skip
    group.add_argument("--override-generation-config", type=json.loads, default={},
                       metavar="JSON", help="more of it, or other values")  # fmt: skip
    group.add_argument("--return-tokens-as-token-ids", **yes,
                       help="logprobs name tokens as token_id:17")  # fmt: skip
    group.add_argument("--enable-prompt-tokens-details", **yes,
                       help="usage says how much of the prompt was cached")  # fmt: skip
    group.add_argument("--enable-force-include-usage", **yes,
                       help="every stream ends with its usage")  # fmt: skip
    group.add_argument("--enable-per-request-metrics", **yes,
                       help="answers say how long they took")  # fmt: skip
    group.add_argument("--enable-tokenizer-info-endpoint", **yes, help="GET /tokenizer_info")
    group.add_argument("--disable-fastapi-docs", **yes, help="no /docs and no /openapi.json")
    group.add_argument("--enable-request-id-headers", **yes, help="answers have X-Request-Id")
    group.add_argument("--enable-server-load-tracking", **yes, help="/load counts")
    group = parser.add_argument_group("tools", "how calls are read out of answers")
    group.add_argument("--enable-auto-tool-choice", **yes,
                       help="the model may call tools when it wants to")  # fmt: skip
    group.add_argument("--tool-call-parser", choices=sorted(ToolParserManager.tool_parsers),
                       help="the form in which the model writes calls")  # fmt: skip
    group.add_argument("--tool-strict-level", choices=STRICT_LEVELS, default="auto",
                       help="calls that a grammar holds to their schema: those of tools that say "
                       "strict (auto; function: names, too), or all (parameter)")  # fmt: skip
    group.add_argument("--exclude-tools-when-tool-choice-none", **yes,
                       help="the template does not see tools that may not be called")  # fmt: skip
    group = parser.add_argument_group("glass", "for teaching: who reaches the page sees it all")
    group.add_argument("--glass", **yes,
                       help="a page at /glass that shows live what the engine does, and can "
                       "pause it; without --host only this machine is answered")  # fmt: skip
    group = parser.add_argument_group("log", "what the server writes")
    levels = ("critical", "error", "warning", "info", "debug", "trace")
    group.add_argument("--uvicorn-log-level", choices=levels, default="info",
                       help="of the HTTP server (default: info)")  # fmt: skip
    group.add_argument("--disable-uvicorn-access-log", **yes, help="no line for every answer")
    group.add_argument("--max-log-len", type=int, metavar="N",
                       help="most characters of a prompt in the log")  # fmt: skip


def make_parser(prog: str = "minivllm serve") -> FlexibleArgumentParser:
    """The parser of all flags, in groups."""
    parser = FlexibleArgumentParser(
        prog=prog,
        description="Serve a model over HTTP, as OpenAI's clients ask it.",
        allow_abbrev=False,
    )
    parser.add_argument("model_tag", nargs="?", metavar="MODEL",
                        help="a directory or a hub's name; none: the embedded one")  # fmt: skip
    parser.add_argument("--model", help="the same")
    parser.add_argument("--config", metavar="FILE.yaml", help="flags and their values; typed win")
    _front_flags(parser)
    _engine_flags(parser)
    parser.refuse(_NOT_HERE)
    return parser


def parse_args(words: list[str], prog: str = "minivllm serve") -> argparse.Namespace:
    """The values of a command line. Bad ones end the program with status 2 and a sentence."""
    parser = make_parser(prog)
    args = parser.parse(words)
    args.model = args.model_tag or args.model
    args.root_path = args.root_path.rstrip("/")
    if args.glass:
        args.host, args.trace = args.host or "127.0.0.1", True
    if args.enable_auto_tool_choice and not args.tool_call_parser:
        parser.error("--enable-auto-tool-choice needs --tool-call-parser")
    for ok, flag, value, allowed in (
        (0 <= args.port < 2**16, "--port", args.port, "from 0 to 65535"),
        (args.shutdown_timeout >= 0, "--shutdown-timeout", args.shutdown_timeout, "0 or more"),
        (isinstance(args.override_generation_config, dict), "--override-generation-config",
         args.override_generation_config, "a JSON object"),
        (isinstance(args.default_chat_template_kwargs, dict), "--default-chat-template-kwargs",
         args.default_chat_template_kwargs, "a JSON object"),
        *(
            (isinstance(value, list) and all(isinstance(one, str) for one in value),
             f"--allowed-{name}", value, "a list of strings as JSON")
            for name in ("origins", "methods", "headers")
            for value in [getattr(args, f"allowed_{name}")]
        ),
    ):  # fmt: skip
        if not ok:
            parser.error(f"{flag} must be {allowed}, got {value}")
    return args


def engine_args(args: argparse.Namespace) -> AsyncEngineArgs:
    """The engine's part of them. Raises ``ValueError`` for what the engine does not do."""
    names = {field.name for field in fields(AsyncEngineArgs)} - _PROGRAMS_ONLY | {"model"}
    return AsyncEngineArgs(**{name: getattr(args, name) for name in names})
