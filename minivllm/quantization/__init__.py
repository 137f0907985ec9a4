"""Quantized weights: which format a checkpoint has, by its files, and what is asked for.

(vLLM: vllm/model_executor/layers/quantization/)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minivllm.logger import init_logger
from minivllm.quantization import gguf
from minivllm.quantization.awq import AWQConfig
from minivllm.quantization.base_config import QuantizationConfig
from minivllm.quantization.compressed_tensors import CompressedTensorsConfig
from minivllm.quantization.fp8 import FP8Config
from minivllm.quantization.gptq import GPTQConfig
from minivllm.quantization.round_to_nearest import OnlineConfig
from minivllm.utils.json_files import read_json_object
from minivllm.utils.validation import check, is_one_of

logger = init_logger(__name__)

CHECKPOINTS: dict[str, type[QuantizationConfig]] = {
    "awq": AWQConfig, "compressed-tensors": CompressedTensorsConfig, "fp8": FP8Config,
    "gptq": GPTQConfig,
}  # fmt: skip
SAME_AS = {"gptq_marlin": "gptq", "marlin": "gptq", "awq_marlin": "awq"}  # a kernel of 0.6.6
ONLINE = {"int8_per_channel_weight_only": 8, "int4": 4}  # made from floats: bits
QUANTIZATION_METHODS = (*CHECKPOINTS, *SAME_AS, *ONLINE, "gguf")  # vLLM's names, and int4
_LEFT_OUT = ("ignore", "ignored_layers", "modules_to_not_convert")  # lists of layers' names
OLD_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}  # beside config.json


def check_quantization(quantization: Any) -> None:
    """Raise ``ValueError`` for an engine's ``quantization`` that we do not have."""
    ok = quantization is None or is_one_of(quantization, QUANTIZATION_METHODS)
    allowed = f"None or one of {', '.join(QUANTIZATION_METHODS)}"
    check(ok, "quantization", quantization, allowed)


def get_quantization_config(
    directory: str | Path, quantization: str | None = None
) -> QuantizationConfig | None:
    """Find out how a checkpoint is quantized, or shall be; None: not at all.

    Args:
        directory: with config.json.
        quantization: what the user asks for; None: what the files say.

    Raises:
        ValueError: if the files say what we do not have, or another method than the user.
    """
    check_quantization(quantization)
    if gguf.is_gguf(directory):
        check(quantization in (None, "gguf"), "quantization", quantization, "None or 'gguf'")
        return gguf.GGUFConfig.from_file(directory)
    found, source = _read(Path(directory))
    method = found.get("quant_method") if found else None
    if method is None:
        ok = quantization is None or quantization in ONLINE
        allowed = f"None or one of {', '.join(ONLINE)}: {source} describes float weights"
        check(ok, "quantization", quantization, allowed)
        return None if quantization is None else OnlineConfig(quantization, ONLINE[quantization])
    ok = is_one_of(method, CHECKPOINTS)
    check(ok, f"quant_method in {source}", method, f"one of {', '.join(CHECKPOINTS)}")
    ok = quantization is None or SAME_AS.get(quantization, quantization) == method
    check(ok, "quantization", quantization, f"{method!r}, as quant_method in {source} is")
    config = CHECKPOINTS[method].from_config(found, source)
    if isinstance(config, GPTQConfig) and quantization != method:
        _log_marlin(config)
    return config


def _read(directory: Path) -> tuple[dict, str]:
    """The quantization's own part of the configuration, and the name of its file."""
    file = directory / "config.json"
    config = read_json_object(file)
    found = config.get("quantization_config") or config.get("compression_config")  # its old name
    if found is not None:
        check(isinstance(found, dict), f"quantization_config in {file}", found, "an object")
        return {"quant_method": None} | _of_language_half(found), str(file)
    for name, method in OLD_FILES.items():
        old = directory / name
        if old.is_file():
            return {"quant_method": method} | read_json_object(old), str(old)
    return {}, str(file)


def _of_language_half(found: dict) -> dict:
    """Settings whose layers have the names of a decoder, where they are those of a whole model.

    One of pictures or sound calls its decoder's head ``language_model.lm_head``. Patterns stay.
    """

    def shorter(name: Any) -> Any:
        is_name = isinstance(name, str) and not name.startswith("re:")
        return name.replace("language_model.", "", 1) if is_name else name

    return found | {
        key: [shorter(name) for name in found[key]]
        for key in _LEFT_OUT
        if isinstance(found.get(key), list)
    }


def _log_marlin(config: GPTQConfig) -> None:
    """Log the line that 0.6.6 has for a checkpoint whose layout Marlin can take."""
    if config.scheme.sym and config.scheme.bits in (4, 8):
        logger.info(
            "The model is convertible to gptq_marlin during runtime. Using gptq_marlin kernel."
        )
