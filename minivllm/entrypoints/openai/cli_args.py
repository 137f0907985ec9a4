"""Flags of ``minivllm serve``: vLLM's, in either spelling, from the command line or a file.

(vLLM 0.6.6: vllm/entrypoints/openai/cli_args.py)
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from minivllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from minivllm.entrypoints.argparse_utils import (
    JSON_TIP,
    FlexibleArgumentParser,
    human_readable_int,
    optional,
    parse_json,
)
from minivllm.entrypoints.chat_content_format import CONTENT_FORMATS
from minivllm.entrypoints.openai.chat_completion.tool_choice import STRICT_LEVELS
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
_PARSERS: dict[str, Callable[[str], Any]] = {
    "int": human_readable_int, "float": float, "str": str, "dict": parse_json, "Any": str,
}  # fmt: skip
_SHORT = {"speculative_config": "-sc"}  # vLLM's other name of a flag


def _engine_flags(parser: FlexibleArgumentParser) -> None:
    """A flag for every field of ``AsyncEngineArgs``; its comment is the help."""
    source = inspect.getsource(EngineArgs) + inspect.getsource(AsyncEngineArgs)
    notes = dict(re.findall(r"^    (\w+): [^#\n]*  # (.*)$", source, re.MULTILINE))
    group = parser.add_argument_group("engine", "what runs and within which limits")
    for field in fields(AsyncEngineArgs):
        flag = "--" + field.name.replace("_", "-")
        if field.name == "model":  # it has an argument of its own
            continue
        if field.type == "type | None":
            parser.refuse({flag: "it takes a class, which only a program can give"})
            continue
        default = None if field.default is MISSING else field.default
        note = notes.get(field.name, "").replace("%", "%%")
        text = f"{note} (default: {default})".strip()
        if field.type == "bool":
            action = argparse.BooleanOptionalAction
            group.add_argument(flag, action=action, default=default, help=text)
        else:
            parse = _PARSERS[field.type.split(" | ")[0]]
            if field.type == "Any" or field.type.endswith("None"):
                parse = optional(parse)
            short = [_SHORT[field.name]] if field.name in _SHORT else []
            metavar = "JSON" if parse is parse_json else "X"
            group.add_argument(
                flag, *short, type=parse, default=default, metavar=metavar, help=text
            )


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
            f"--allowed-{name}", type=parse_json, default=default, metavar="JSON",
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
    group.add_argument("--default-chat-template-kwargs", type=parse_json, default={},
                       metavar="JSON", help="for the template; a request's win")  # fmt: skip
    group.add_argument("--trust-request-chat-template", **yes,
                       help="a request may bring its own template")  # fmt: skip
    group.add_argument("--response-role", default="assistant", help="who answers in a chat")
    group.add_argument("--generation-config", choices=("auto", "vllm"), default="auto",
                       help="'vllm': without the model's generation_config.json")  # fmt: skip
    group.add_argument("--override-generation-config", type=parse_json, default={},
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
        epilog=JSON_TIP,
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
    names = {field.name for field in fields(AsyncEngineArgs)}
    return AsyncEngineArgs(**{name: value for name, value in vars(args).items() if name in names})
