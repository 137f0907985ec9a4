"""MultiModalConfig: pictures, sounds and videos of a prompt: how many, and where from.

(vLLM: vllm/config/multimodal.py)
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minivllm.utils.validation import check, check_names, is_int, is_number, is_text

MODALITIES = ("image", "video", "audio")
MOST_ITEMS = 999  # of a modality in a prompt, where nothing else is said: vLLM's since V1
# What vLLM's profile of memory is told of the largest item: here the model's own processor says it.
_SIZES = {
    "image": ("count", "width", "height"),
    "video": ("count", "num_frames", "width", "height"),
    "audio": ("count", "length"),
}
_IMAGE_IO = ("image_mode", "rgba_background_color")
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")


@dataclass(frozen=True)
class MultiModalConfig:
    """Limits and sources of items, and options of what reads and processes them.

    Args:
        limit_per_prompt: by modality, the most items of a prompt; of others ``MOST_ITEMS``.
        mm_processor_kwargs: options of the model's own processor; a prompt's win.
        media_io_kwargs: by modality, how items are read; of an image ``image_mode`` and
            ``rgba_background_color``.
        mm_processor_cache_gb: GiB of processed items that are kept; 0: none.
        interleave_mm_strings: in a template that takes text, placeholders stay where their parts
            are; False: they come first.
        allowed_local_media_path: the directory below which requests may name files; "": none.
        allowed_media_domains: hosts from which requests may name pictures; empty: none.
    """

    limit_per_prompt: dict[str, int] = field(default_factory=dict)
    mm_processor_kwargs: dict[str, Any] = field(default_factory=dict)
    media_io_kwargs: dict[str, dict[str, Any]] = field(default_factory=dict)
    mm_processor_cache_gb: float = 4
    interleave_mm_strings: bool = False
    allowed_local_media_path: str = ""
    allowed_media_domains: tuple[str, ...] = ()

    def get_limit_per_prompt(self, modality: str) -> int:
        """The most items of a modality in one prompt."""
        return self.limit_per_prompt.get(modality, MOST_ITEMS)


def make_multimodal_config(args: Any) -> MultiModalConfig:
    """Make the config of an engine's arguments.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    gigabytes = args.mm_processor_cache_gb
    ok = is_number(gigabytes) and gigabytes >= 0
    check(ok, "mm_processor_cache_gb", gigabytes, "a number of GiB of at least 0")
    return MultiModalConfig(
        limit_per_prompt=parse_limits(args.limit_mm_per_prompt),
        mm_processor_kwargs=check_processor_kwargs(args.mm_processor_kwargs),
        media_io_kwargs=check_media_io_kwargs(args.media_io_kwargs),
        mm_processor_cache_gb=gigabytes,
        interleave_mm_strings=args.interleave_mm_strings,
        allowed_local_media_path=_directory(args.allowed_local_media_path),
        allowed_media_domains=_domains(args.allowed_media_domains),
    )


def parse_limits(given: Any) -> dict[str, int]:
    """Parse ``limit_mm_per_prompt``: a dict, its JSON, or ``image=2,video=1`` as in 0.6.6.

    Raises:
        ValueError: for another form, modality or number.
    """
    name = "limit_mm_per_prompt"
    allowed = "a dict such as {'image': 2}, its JSON, or 'image=2'"
    limits = given
    if isinstance(given, str):
        limits = _parse_text(given)
    elif given is None:
        limits = {}
    check(isinstance(limits, dict) and all(map(is_text, limits)), name, given, allowed)
    check_names(name, limits, MODALITIES)
    found = {}
    for modality, value in limits.items():
        if isinstance(value, dict):
            check_names(f"{name}[{modality!r}]", value, _SIZES[modality])
            value = value.get("count", MOST_ITEMS)
        check(is_int(value, 0), f"{name}[{modality!r}]", value, "an integer of at least 0")
        found[modality] = value
    return found


def _parse_text(text: str) -> Any:
    """The value of JSON, or of ``name=number`` between commas; None for another text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pairs = [pair.strip().partition("=") for pair in text.split(",")]
    if not all(number.strip().isdecimal() for _, _, number in pairs):
        return None
    return {name.strip(): int(number) for name, _, number in pairs}


def check_processor_kwargs(given: Any) -> dict[str, Any]:
    """Check ``mm_processor_kwargs``; None is an empty dict. Raises ``ValueError``."""
    ok = given is None or (isinstance(given, dict) and all(map(is_text, given)))
    check(ok, "mm_processor_kwargs", given, "a dict of options of the model's processor, or None")
    return dict(given or {})


def check_media_io_kwargs(given: Any) -> dict[str, dict[str, Any]]:
    """Check ``media_io_kwargs``; None is an empty dict. Raises ``ValueError``."""
    name = "media_io_kwargs"
    ok = given is None or (isinstance(given, dict) and all(map(is_text, given)))
    ok = ok and all(isinstance(options, dict) for options in (given or {}).values())
    check(ok, name, given, "a dict of options by modality, as {'image': {...}}, or None")
    given = given or {}
    check_names(name, given, MODALITIES)
    for modality, options in given.items():
        check_names(f"{name}[{modality!r}]", options, _IMAGE_IO if modality == "image" else ())
    options = given.get("image", {})
    mode = options.get("image_mode", "RGB")
    check(mode in ("RGB", "RGBA", "L"), "image_mode", mode, "'RGB', 'RGBA' or 'L'")
    color = options.get("rgba_background_color", (255, 255, 255))
    ok = isinstance(color, (list, tuple)) and len(color) == 3
    ok = ok and all(is_int(part, 0) and part < 256 for part in color)
    check(ok, "rgba_background_color", color, "three integers from 0 to 255")
    return {modality: dict(options) for modality, options in given.items()}


def _directory(given: Any) -> str:
    """The resolved path of ``allowed_local_media_path``; "" for none."""
    name = "allowed_local_media_path"
    allowed = "an existing directory, or '' for none"
    if given is None or (isinstance(given, str) and given == ""):
        return ""
    check(is_text(given) or isinstance(given, Path), name, given, allowed)
    try:
        found = Path(given).is_dir()
    except (OSError, ValueError):  # a name that no file can have
        found = False
    check(found, name, given, allowed)
    return str(Path(given).resolve())


def _domains(given: Any) -> tuple[str, ...]:
    """The hosts of ``allowed_media_domains`` in lower case."""
    name = "allowed_media_domains"
    allowed = "a list of names of hosts, as images.example.org"
    ok = given is None or isinstance(given, (list, tuple))
    check(ok, name, given, allowed)
    hosts = []
    for one in given or ():
        host = one.lower().rstrip(".") if is_text(one) else ""
        check(bool(_HOST.fullmatch(host)), name, given, allowed)
        hosts.append(host)
    return tuple(hosts)
