"""Environment variables: one table, read when asked, each with its meaning and default."""

from __future__ import annotations

import logging
import os
from pathlib import Path

_TABLE: dict[str, tuple[str, str]] = {
    # name: (default, meaning)
    "MINIVLLM_LOGGING_LEVEL": (
        "INFO",
        "least important line that is logged: DEBUG, INFO, WARNING, ERROR or CRITICAL",
    ),
    "MINIVLLM_LOG_STATS_INTERVAL": ("10", "seconds between two lines of engine statistics"),
    "MINIVLLM_CACHE_ROOT": ("~/.cache/minivllm", "pulled models, and what else can be deleted"),
    "MINIVLLM_PP_LAYER_PARTITION": ("", 'layers of each pipeline stage: "3,2"; "": equal'),
    "MINIVLLM_DEVICE": ("auto", "of device='auto': cpu, cuda, or auto: a GPU if there is one"),
    "MINIVLLM_CPU_KVCACHE_SPACE": ("1", "GiB of memory for the KV cache when the device is a CPU"),
    "MINIVLLM_API_KEY": ("", "a key that the server wants under /v1, as --api-key"),
    "MINIVLLM_SERVER_DEV_MODE": ("0", "1: the server can be paused, reset and looked into"),
    "MINIVLLM_ALLOW_RUNTIME_LORA_UPDATING": ("0", "1: clients may load and unload adapters"),
    "MINIVLLM_USE_MODELSCOPE": ("0", "1: download models from ModelScope, not Hugging Face"),
    "MINIVLLM_XRAY": ("", "file to which the X-ray of a vLLM is written"),
    "MINIVLLM_XRAY_MAX_BYTES": ("268435456", "bound of that file; its oldest steps are dropped"),
    "MINIVLLM_XRAY_TEXT": ("1", "0: leave token ids out of that file"),
    "MINIVLLM_XRAY_CHECK": ("0", "1: compare each step of an X-ray with vLLM's own blocks"),
    "SITE_URL": ("", "address of minivllm's site, to which the pages then link"),
    "MINIVLLM_SHAKE_SEED": ("", "for tests: shake the last bits of products, by this number"),
    "MINIVLLM_XRAY_POLICY": ("", "module:Class of the policy that orders vLLM's waiting queue"),
}


def get(name: str) -> str:
    """The variable's text, or its default."""
    return os.environ.get(name, _TABLE[name][0])


def table() -> list[tuple[str, str, str]]:
    """Rows ``(name, default, meaning)``, for documentation."""
    return [(name, default, meaning) for name, (default, meaning) in _TABLE.items()]


def logging_level() -> str:
    level = get("MINIVLLM_LOGGING_LEVEL").upper()
    if not isinstance(logging.getLevelName(level), int):  # WARN, FATAL and NOTSET are names, too
        raise ValueError(
            "MINIVLLM_LOGGING_LEVEL must be DEBUG, INFO, WARNING, ERROR or CRITICAL, "
            f"got {level!r}."
        )
    return level


def site_url() -> str:
    """Address that pages of the site are found below; "" if it is not known."""
    url = get("SITE_URL").strip()
    return url and url.rstrip("/") + "/"


def log_stats_interval() -> float:
    return _number_above_0("MINIVLLM_LOG_STATS_INTERVAL", "seconds")


def cache_root() -> Path:
    return Path(get("MINIVLLM_CACHE_ROOT")).expanduser()


def device() -> str:
    name = get("MINIVLLM_DEVICE")
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"MINIVLLM_DEVICE must be auto, cpu or cuda, got {name!r}.")
    return name


def cpu_kvcache_bytes() -> int:
    return int(_number_above_0("MINIVLLM_CPU_KVCACHE_SPACE", "GiB") * 2**30)


def pp_layer_partition() -> str:
    return get("MINIVLLM_PP_LAYER_PARTITION")


def api_keys() -> list[str]:
    key = get("MINIVLLM_API_KEY")
    return [key] if key else []


def server_dev_mode() -> bool:
    return _flag("MINIVLLM_SERVER_DEV_MODE")


def allow_runtime_lora_updating() -> bool:
    return _flag("MINIVLLM_ALLOW_RUNTIME_LORA_UPDATING")


def use_modelscope() -> bool:
    return _flag("MINIVLLM_USE_MODELSCOPE")


def xray_path() -> str:
    return get("MINIVLLM_XRAY")


def xray_max_bytes() -> int:
    return int(_number_above_0("MINIVLLM_XRAY_MAX_BYTES", "bytes"))


def xray_text() -> bool:
    return _flag("MINIVLLM_XRAY_TEXT")


def xray_check() -> bool:
    return _flag("MINIVLLM_XRAY_CHECK")


def xray_policy() -> str:
    return get("MINIVLLM_XRAY_POLICY")


def shake_seed() -> int | None:
    text = get("MINIVLLM_SHAKE_SEED")
    if text and not (text.isdecimal() and text.isascii() and int(text) < 2**32):
        raise ValueError(f"MINIVLLM_SHAKE_SEED must be a whole number below 2**32, got {text!r}.")
    return int(text) if text else None


def _number_above_0(name: str, unit: str) -> float:
    text = get(name)
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError(f"{name} must be a number of {unit} above 0, got {text!r}.")
    return number


def _flag(name: str) -> bool:
    text = get(name)
    if text.lower() not in ("0", "1", "false", "true"):
        raise ValueError(f"{name} must be 0 or 1, got {text!r}.")
    return text.lower() in ("1", "true")
