"""FlexibleArgumentParser: argparse with vLLM's spellings, JSON key by key, and files of flags.

(vLLM: vllm/utils/argparse_utils.py)
"""

from __future__ import annotations

import argparse
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from minivllm.utils.validation import shown

JSON_TIP = (
    'JSON can be typed key by key: --x.a 1 --x.b.c 2 is --x \'{"a": 1, "b": {"c": 2}}\', and '
    "--x.a+ 1,2 appends to a list. What is typed so is one value, which wins over others of --x."
)


def parse_json(text: str) -> Any:
    """Parse JSON; ``None`` is null, too."""
    if text.lower() == "none":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"must be JSON, got {shown(text)} ({error})"
        raise argparse.ArgumentTypeError(message) from error


def parse_json_or_text(text: str) -> Any:
    """Parse JSON, or leave a text as it is: ``image=2``; the engine says whether it can be."""
    return text if "=" in text and text[0] not in "{[" else parse_json(text)


JSON_PARSERS = (parse_json, parse_json_or_text)


def human_readable_int(text: str) -> int:
    """Parse an integer, also in vLLM's notation: 1k is 1000, 1K is 1024, and so m, M, g, G."""
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kKmMgG]?)", text)
    if match is None or ("." in match[1] and not match[2]):
        raise argparse.ArgumentTypeError(f"an integer, or one like 8k or 8K, not {text!r}")
    unit = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
    return int(float(match[1]) * unit[match[2]]) if match[2] else int(match[1])


def optional(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser of texts that takes ``None``, too."""
    if parse is parse_json:
        return parse

    @functools.wraps(parse)
    def parse_or_none(text: str) -> Any:
        return None if text.lower() == "none" else parse(text)

    return parse_or_none


class _Refused(argparse.Action):
    """A flag that is refused, with the reason, which is its ``const``."""

    def __call__(self, parser, namespace, values, option_string=None):
        parser.error(f"{option_string} is not there: {self.const}")


class FlexibleArgumentParser(argparse.ArgumentParser):
    """argparse, with three things more.

    ``--max_num_seqs`` is ``--max-num-seqs``. ``--config`` names a YAML file, and what the file says
    comes before the typed words, so these win. A flag that takes JSON (its type is one of
    ``JSON_PARSERS``) takes single keys, too; see ``JSON_TIP``.
    """

    def parse(self, args: list[str]) -> argparse.Namespace:
        """The values of these words. A wrong one ends the program with a sentence, as argparse."""
        words = self._with_file([self._dashes(word) for word in args])
        return self.parse_args(self._with_json(words))

    def add_groups(
        self,
        groups: dict[str, Any],
        choices: Mapping[str, Iterable[str]],
        types: dict[str, Callable[[str], Any]] | None = None,
    ) -> None:
        """Groups of flags, as a TOML file describes them.

        Args:
            groups: of each its description, and of each of its flags the arguments of argparse.
                A flag of the type "yes" has no value and another name, --no-x; one of the type
                "on" has no value.
            choices: of some flags, those that the code decides.
            types: further types by their names; "int", "float" and "json" are known.
        """
        types = {"int": int, "float": float, "json": parse_json, **(types or {})}
        for title, described in groups.items():
            group = self.add_argument_group(title, described["description"])
            for name, options in described["flags"].items():
                if name in choices:
                    options["choices"] = choices[name]
                kind = options.pop("type", None)
                if kind == "yes":
                    options |= {"action": argparse.BooleanOptionalAction, "default": False}
                elif kind == "on":
                    options["action"] = "store_true"
                elif kind is not None:
                    options["type"] = types[kind]
                group.add_argument(f"--{name}", **options)

    def refuse(self, reasons: dict[str, str]) -> None:
        """Flags that end the program with the reason why they are not there."""
        for flag, reason in reasons.items():
            self.add_argument(
                flag, nargs="*", action=_Refused, const=reason, help=argparse.SUPPRESS
            )

    @staticmethod
    def _dashes(word: str) -> str:
        """The word with dashes in a flag's name, up to the first dot."""
        if not word.startswith("--"):
            return word
        name = re.match("[^.=]*", word)[0]  # type: ignore[index]
        return name.replace("_", "-") + word[len(name) :]

    def _with_json(self, words: list[str]) -> list[str]:
        """Words ``--x.key value`` become one JSON value of each flag, at the end."""
        rest: list[str] = []
        found: dict[str, dict] = {}
        left = iter(words)
        for word in left:
            name, equals, value = word.partition("=")
            flag, dot, path = name.partition(".")
            action = self._option_string_actions.get(flag)
            if not dot or action is None or action.type not in JSON_PARSERS:
                rest.append(word)
                continue
            if not equals:
                value = next(left, "--")
                if value.startswith("--"):
                    self.error(f"{name} needs a value")
            _put(found.setdefault(action.option_strings[0], {}), path, value)
        return rest + [f"{flag}={json.dumps(value)}" for flag, value in found.items()]

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
                return first + list(self._words_of(path)) + rest
        return words

    def _words_of(self, path: str) -> Iterator[str]:
        """The words for what a file says."""
        if Path(path).suffix not in (".yaml", ".yml"):
            self.error(f"--config must be a .yaml or .yml file, got {path!r}")
        try:
            settings = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            self.error(f"--config {path} cannot be read: {error}")
        if not isinstance(settings, dict):
            self.error(f"--config {path} must hold names and values, as host: 127.0.0.1")
        for key, value in settings.items():
            flag = self._dashes(f"--{key}")
            action = self._option_string_actions.get(flag.partition(".")[0])
            if action is None or action.dest == "config":
                self.error(f"--config {path}: there is no flag {flag} for a file")
            if value is None or (value is False and isinstance(action, _Refused)):
                continue
            if action.nargs == 0:
                if not isinstance(value, bool):
                    self.error(f"--config {path}: {key} must be true or false, got {value!r}")
                no = "--no-" + flag[2:]
                if value or no in self._option_string_actions:
                    yield flag if value else no
                continue
            try:
                if isinstance(value, list) and action.nargs is not None:
                    yield from (flag, *map(_word, value))
                else:
                    yield f"{flag}={_word(value)}"
            except (TypeError, ValueError, RecursionError) as error:
                self.error(f"--config {path}: {key} must hold JSON's own types ({error})")


def _word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (bool, list, dict)) else str(value)


def _put(value: dict, path: str, text: str) -> None:
    """Put a text where a path of keys leads; a path that ends in ``+`` appends to a list."""
    *keys, last = path.removesuffix("+").split(".")
    for key in keys:
        if not isinstance(value.get(key), dict):
            value[key] = {}
        value = value[key]
    if path.endswith("+"):
        before = value.get(last)
        value[last] = [*(before if isinstance(before, list) else []), *text.split(",")]
    else:
        value[last] = _json_or_text(text)


def _json_or_text(text: str) -> Any:
    """The value of JSON, an integer in vLLM's notation, or else the text."""
    for parse in (json.loads, human_readable_int):
        try:
            return parse(text)
        except (ValueError, RecursionError, argparse.ArgumentTypeError):
            continue
    return text
