"""``minivllm quantize``: from a float checkpoint to one in 2, 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import torch

from minivllm.embedded.data.corpus import samples
from minivllm.engine.input_processor import load_tokenizer
from minivllm.lab.quantize.checkpoint import (
    awq_tensors,
    gptq_tensors,
    int8_tensors,
    quantization_config,
    save_checkpoint,
)
from minivllm.lab.quantize.model import METHODS, quantize_model, quantized_parts
from minivllm.lab.training.curriculum import FULL_PLAN
from minivllm.models.checkpoint import LinearPart
from minivllm.models.decoder import DecoderModel
from minivllm.models.loader import load_config, load_model
from minivllm.quantization import get_quantization_config
from minivllm.utils.validation import check, is_int

BITS = (2, 4, 8)
TENSORS_OF_METHOD = {"awq": awq_tensors, "smoothquant": int8_tensors}
BITS_OF_METHOD = {"awq": (4,), "smoothquant": (8,)}


def run_quantize(
    source: Path, target: Path, method: str, bits: int, group: int, sym: bool, num_texts: int
) -> None:
    """Quantize the checkpoint in one directory into another.

    Args:
        source: a Hugging Face directory with a float checkpoint.
        target: is made; it must not hold a checkpoint.
        method, bits, group, sym: see ``quantize_model``; group -1 is a whole row, as "smoothquant"
            always takes.
        num_texts: how many calibration texts, of the embedded model's training text.

    Raises:
        ValueError: for a value out of range, or a model that cannot be quantized so.
    """
    check(method in METHODS, "method", method, f"one of {', '.join(METHODS)}")
    bits_of_method = BITS_OF_METHOD.get(method, BITS)
    ok = bits in bits_of_method
    check(ok, "bits", bits, f"one of {bits_of_method} with {method}")
    if method == "smoothquant":  # what int8 products take
        group = -1
        sym = True
    check(is_int(num_texts, 1), "num_texts", num_texts, "an integer of at least 1")
    ok = not (target / "config.json").exists()
    check(ok, "the target", str(target), "a directory without a config.json")
    if (found := get_quantization_config(source)) is not None:
        check(False, "the source", f"a checkpoint in {found.name}", "one of floats")
    config = load_config(source)
    model = load_model(source, config, torch.float32, device=torch.device("cpu"))
    for name, part in quantized_parts(model).items():
        check_sizes(name, part, bits, group=group)
    texts = list(calibration_texts(source, config.max_model_len, num_texts))
    sym = sym and method != "awq"
    tensors: dict[str, torch.Tensor] = {}
    to_tensors = TENSORS_OF_METHOD.get(method) or partial(gptq_tensors, bits=bits)
    for name, weight in quantize_model(model, texts, method, bits=bits, group=group, sym=sym):
        for key, tensor in to_tensors(name, weight).items():
            is_transposed = key.endswith(model.transposed_in_checkpoint)
            tensors[key] = tensor.T.contiguous() if is_transposed else tensor
    tensors |= float_tensors(model, config.dtype)  # scales were folded into some of them
    save_checkpoint(
        source, target, tensors, config=quantization_config(method, bits, group, sym=sym)
    )


def check_sizes(name: str, part: LinearPart, bits: int, group: int) -> None:
    """Raise ``ValueError`` unless groups divide a layer's inputs, and words its sizes."""
    width, columns = part.layer.weight[part.rows].shape
    ok = is_int(group) and (group == -1 or (group > 0 and columns % group == 0))
    allowed = f"-1 for whole rows, or a divisor of the {columns} inputs of {name}"
    check(ok, "group", group, allowed)
    per_word = 32 // bits
    ok = width % per_word == 0 and columns % per_word == 0
    allowed = f"a number whose words of {per_word} divide the sizes {width} x {columns} of {name}"
    check(ok, "bits", bits, allowed)


def float_tensors(model: DecoderModel, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Tensors that stay as they are, in the checkpoint's dtype: all but quantized weights."""
    left_out = {f"{name}.weight" for name in quantized_parts(model)}
    tensors = model.checkpoint_tensors().items()
    return {name: t.to(dtype).contiguous() for name, t in tensors if name not in left_out}


def calibration_texts(source: Path, longest: int, count: int) -> Iterator[list[int]]:
    """Token ids of the first texts that the embedded model would be trained on."""
    tokenizer = load_tokenizer(source)
    texts = samples(FULL_PLAN.stages[-1].mixture, "calibration")
    for sample in islice(texts, count):
        yield tokenizer.encode(sample.text)[: longest - 1]
