"""Flags of ``minivllm serve``: vLLM's, in either spelling, from the command line or a file.

(vLLM 0.6.6: vllm/entrypoints/openai/cli_args.py)
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from minivllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from minivllm.entrypoints.argparse_utils import (
    JSON_PARSERS,
    JSON_TIP,
    FlexibleArgumentParser,
    human_readable_int,
    optional,
    parse_json,
    parse_json_or_text,
)
from minivllm.entrypoints.chat_content_format import CONTENT_FORMATS
from minivllm.entrypoints.openai.chat_completion.tool_choice import STRICT_LEVELS
from minivllm.entrypoints.openai.models.protocol import LoRAModulePath
from minivllm.entrypoints.openai.tool_parsers import ToolParserManager
from minivllm.utils.toml_data import load_toml

_PARSERS: dict[str, Callable[[str], Any]] = {
    "int": human_readable_int, "float": float, "str": str, "dict": parse_json, "Any": str,
    "list[str]": str,
}  # fmt: skip
_METAVARS = {"int": "N", "float": "NUMBER"}  # of the help
GLASS_BLOCKS = 48  # of a small pool behind glass, the null block included
# vLLM's other name of a flag
_SHORT = {"speculative_config": "-sc", "tensor_parallel_size": "-tp",
          "pipeline_parallel_size": "-pp", "data_parallel_size": "-dp"}  # fmt: skip


def parse_lora_module(text: str) -> LoRAModulePath:
    """Parse ``name=path``, or a JSON object with name, path and perhaps base_model_name."""
    if "=" in text and "," not in text:
        return LoRAModulePath(*text.split("=", 1))
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"Invalid JSON format for --lora-modules: {text}"
        raise argparse.ArgumentTypeError(message) from error
    try:
        return LoRAModulePath(**given)
    except (TypeError, ValueError) as error:
        message = f"Invalid fields for --lora-modules: {text} - {error}"
        raise argparse.ArgumentTypeError(message) from error


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
        if field.type in ("bool", "bool | None"):
            action = argparse.BooleanOptionalAction
            group.add_argument(flag, action=action, default=default, help=text)
        else:
            kind = field.type.split(" | ")[0]
            parse = _PARSERS[kind]
            if field.type == "Any" or field.type.endswith("None"):
                parse = optional(parse)
            if field.type.startswith("dict | str"):
                parse = parse_json_or_text
            nargs = "+" if kind == "list[str]" else None
            short = [_SHORT[field.name]] if field.name in _SHORT else []
            metavar = "JSON" if parse in JSON_PARSERS else _METAVARS.get(kind, "TEXT")
            group.add_argument(
                flag, *short, type=parse, nargs=nargs, default=default, metavar=metavar, help=text
            )


def make_parser(prog: str = "minivllm serve") -> FlexibleArgumentParser:
    """The parser of all flags, in groups."""
    parser = FlexibleArgumentParser(
        prog=prog,
        usage=f"{prog} [MODEL] [--flag VALUE ...]",
        description="Serve a model over HTTP, as OpenAI's clients ask it.",
        epilog=JSON_TIP,
        allow_abbrev=False,
    )
    parser.add_argument("model_tag", nargs="?", metavar="MODEL",
                        help="a directory or a hub's name; none: the embedded one")  # fmt: skip
    parser.add_argument("--model", help="the same")
    parser.add_argument("--config", metavar="FILE.yaml", help="flags and their values; typed win")
    choices = {
        "chat-template-content-format": CONTENT_FORMATS,
        "tool-call-parser": sorted(ToolParserManager.tool_parsers),
        "tool-strict-level": STRICT_LEVELS,
    }
    groups = load_toml(__package__, "cli_args")
    parser.refuse(groups.pop("refused"))
    parser.add_groups(groups, choices, {"lora": parse_lora_module})
    _engine_flags(parser)
    return parser


def parse_args(words: list[str], prog: str = "minivllm serve") -> argparse.Namespace:
    """The values of a command line. Bad ones end the program with status 2 and a sentence."""
    parser = make_parser(prog)
    args = parser.parse(words)
    args.model = args.model_tag or args.model
    args.root_path = args.root_path.rstrip("/")
    if args.glass:
        args.host = args.host or "127.0.0.1"
        args.trace = True
        _make_small(args)
    if args.enable_auto_tool_choice and not args.tool_call_parser:
        parser.error("--enable-auto-tool-choice needs --tool-call-parser")
    for ok, flag, value, allowed in (
        (0 <= args.port < 2**16, "--port", args.port, "from 0 to 65535"),
        (args.shutdown_timeout >= 0, "--shutdown-timeout", args.shutdown_timeout, "0 or more"),
        (isinstance(args.override_generation_config, dict | None), "--override-generation-config",
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


def _make_small(args: argparse.Namespace) -> None:
    """Give the embedded model behind glass a pool that is seen block by block, and that fills.

    A size that is given, or a model of one's own, keeps the usual one.
    """
    block_size = args.block_size or 16
    room = (GLASS_BLOCKS - 1) * block_size  # one of them is the null block
    sizes = (args.model, args.num_gpu_blocks_override, args.kv_cache_memory_bytes)
    usual = args.gpu_memory_utilization == AsyncEngineArgs.gpu_memory_utilization
    args.small_pool = sizes == (None, None, None) and usual and (args.max_model_len or 0) <= room
    if args.small_pool:
        args.num_gpu_blocks_override = GLASS_BLOCKS
        args.max_model_len = args.max_model_len or min(512, room)


def engine_args(args: argparse.Namespace) -> AsyncEngineArgs:
    """The engine's part of them. Raises ``ValueError`` for what the engine does not do."""
    names = {field.name for field in fields(AsyncEngineArgs)}
    return AsyncEngineArgs(**{name: value for name, value in vars(args).items() if name in names})
