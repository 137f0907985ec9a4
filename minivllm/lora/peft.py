"""Adapters as PEFT saves them: read, checked against the model, and sorted by our layers.

(vLLM: vllm/lora/lora_model.py)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from minivllm.config.lora import LoRAConfig
from minivllm.logger import init_logger
from minivllm.lora.adapter_files import AdapterFile, digest
from minivllm.lora.peft_helper import PEFTHelper
from minivllm.lora.request import LoRARequest
from minivllm.models.checkpoint import LinearPart
from minivllm.models.decoder import DecoderModel
from minivllm.models.language_half import decoder_name
from minivllm.models.linear import Linear, MergedColumnParallelLinear
from minivllm.utils.validation import shown

logger = init_logger(__name__)

_CONFIG_NAME = "adapter_config.json"
_WEIGHTS_NAMES = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
_MAX_CONFIG_BYTES = 2**20
_SLACK = 2**24  # bytes a file of weights may have beside the numbers of the largest adapter
_MOST_REASONS = 8  # in one message

_BASE_WEIGHTS = (".embed_tokens.base_layer.weight", ".lm_head.base_layer.weight")
_VOCABULARY = ("embed_tokens", "lm_head")
_LORA_NAME = re.compile(r"(.+)\.lora_([AB])\.weight|(.*embed_tokens)\.lora_embedding_([AB])")
_CLASSIFIERS = ("score.", "classifier.")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

Matrices = dict[str, torch.Tensor]  # "A" and "B" of a layer
Weights = dict[str, dict[str, tuple[torch.Tensor, torch.Tensor]]]


@dataclass(frozen=True)
class Adapter:
    """An adapter in host memory: what each layer adds to its product, ``B (A x)``."""

    digest: str  # SHA-256 of its files, in hexadecimal
    rank: int  # the largest of its layers
    weights: Weights  # a layer's path -> its part -> A ``[rank, in]`` and B ``[out, rank]``
    classifier: dict[str, torch.Tensor]  # in place of the model's, by their names; empty: none


def read_adapter(request: LoRARequest, model: DecoderModel, config: LoRAConfig) -> Adapter:
    """Read an adapter's directory, as PEFT writes it, for a model.

    The tensors' names decide which layers it changes; ``target_modules`` of its config does not.
    Its scale is multiplied into B. Layers outside ``config.target_modules`` are left out.

    Raises:
        ValueError: with all reasons, if there is no adapter, if it is broken, if it has a feature
            that we do not have, or if it does not fit the model or the config.
    """
    if not model.supports_lora:
        raise ValueError(f"{type(model).__name__} does not support LoRA yet.")
    directory = Path(os.path.expanduser(request.lora_path))
    try:
        settings = AdapterFile.read(directory / _CONFIG_NAME, _MAX_CONFIG_BYTES)
        helper = PEFTHelper.from_file(settings, config)
        tensors = AdapterFile.read(_weights_path(directory), _max_bytes(model, config))
    except OSError as error:
        raise ValueError(
            f"Loading lora {request.lora_name} failed: No adapter found for {request.lora_path}"
        ) from error
    modules, classifier, reasons = _by_module(tensors)
    reasons += _classifier_misfits(classifier, model)
    _raise(tensors, reasons)
    weights = _weights(tensors, modules, helper, model, config)
    ranks = [len(a) for parts in weights.values() for a, _ in parts.values()]
    return Adapter(digest(settings, tensors), max(ranks, default=helper.r), weights, classifier)


def is_in_target_modules(path: str, layer: Linear, config: LoRAConfig) -> bool:
    """True for a layer that may have adapters: it or a part of it is among those wanted."""
    parts = layer.output_sizes if isinstance(layer, MergedColumnParallelLinear) else ()
    names = {path, path.rpartition(".")[2], *parts}
    return config.target_modules is None or not names.isdisjoint(config.target_modules)


def _weights_path(directory: Path) -> Path:
    for name in _WEIGHTS_NAMES:
        if (directory / name).is_file():
            return directory / name
    raise ValueError(f"{directory} doesn't contain tensors: no {' or '.join(_WEIGHTS_NAMES)}.")


def _max_bytes(model: DecoderModel, config: LoRAConfig) -> int:
    """Size of the largest file: float32, the largest rank everywhere, embedding and head, too."""
    linears = model.checkpoint_linears().items()
    width = sum(sum(model.checkpoint_shape(name, part)) for name, part in linears)
    embeddings = 2 * model.config.vocab_size * model.config.hidden_size
    return 4 * (config.max_lora_rank * width + embeddings) + _SLACK


def _weights(
    file: AdapterFile,
    modules: dict[str, Matrices],
    helper: PEFTHelper,
    model: DecoderModel,
    config: LoRAConfig,
) -> Weights:
    """Check a file's matrices and sort them by our layers, in the dtype that they will have."""
    linears = model.checkpoint_linears()
    if model.config.is_multimodal:  # a half of what it was trained on
        modules = {decoder_name(name, linears): found for name, found in modules.items()}
    reasons = list(_unexpected(file.path.parent, modules, linears))
    _raise(file, reasons)
    settings = helper.ranks_and_scalings(modules)
    for name, matrices in modules.items():
        shape = model.checkpoint_shape(name, linears[name])
        reasons += _misfits(name, matrices, shape, settings[name][0])
    _raise(file, reasons)
    wanted = [
        name
        for name in modules
        if is_in_target_modules(linears[name].path, linears[name].layer, config)
    ]
    if left_out := [name for name in modules if name not in wanted]:
        logger.warning("%s: lora_target_modules leaves out %s.", file.path, shown(sorted(left_out)))
    dtype = model.config.dtype if config.lora_dtype == "auto" else getattr(torch, config.lora_dtype)
    weights: Weights = {}
    for name in wanted:
        path, _, part, _ = linears[name]
        a = modules[name]["A"].to(dtype, copy=True).contiguous()
        b = (modules[name]["B"].float() * settings[name][1]).to(dtype).contiguous()
        if (cut := model.cuts.get(f"{name}.weight")) is not None:  # a rank of several
            a, b = (cut.of(a).clone(), b) if cut.dim else (a, cut.of(b).clone())
        if not (a.isfinite().all() and b.isfinite().all()):
            reasons.append(f"{name} has numbers that are not finite in {dtype}.")
        weights.setdefault(path, {})[part] = (a, b)
    _raise(file, reasons)
    return weights


def _by_module(
    file: AdapterFile,
) -> tuple[dict[str, Matrices], dict[str, torch.Tensor], list[str]]:
    """A file's tensors by their layers, its classifier, and sentences about other names."""
    modules: dict[str, Matrices] = {}
    classifier: dict[str, torch.Tensor] = {}
    reasons = []
    for name, tensor in sorted(file.tensors().items()):  # safetensors has them in any order
        if name.endswith(_BASE_WEIGHTS):
            continue
        own = name.removeprefix("base_model.model.")
        found = _LORA_NAME.fullmatch(own)
        if found is None and own.startswith(_CLASSIFIERS):
            kind = own.partition(".")[2]
            if kind in classifier:
                reasons.append(f"its classifier's {kind} is there twice.")
            classifier[kind] = tensor
            continue
        if found is None:
            reasons.append(f"{shown(name)} is unsupported LoRA weight.")
            continue
        module, matrix = filter(None, found.groups())
        if matrix in modules.setdefault(module, {}):
            reasons.append(f"{shown(name)} is there twice, with and without 'base_model.model.'.")
        modules[module][matrix] = tensor
    if not modules and not reasons:
        reasons.append("there are no LoRA weights in it.")
    return modules, classifier, reasons


def _classifier_misfits(classifier: dict[str, torch.Tensor], model: DecoderModel) -> Iterator[str]:
    """Sentences about a classifier that does not fit in the place of the model's."""
    if not classifier:
        return
    if model.pooler is None:
        yield f"it has a classifier's tensors, {shown(sorted(classifier))}, but the model has none."
        return
    if model.pooler.score is None:  # it makes embeddings, and leaves out those of a checkpoint
        classifier.clear()
        return
    wanted = {name: tuple(p.shape) for name, p in model.pooler.score.named_parameters()}
    shapes = {name: tuple(tensor.shape) for name, tensor in classifier.items()}
    if shapes != wanted:
        yield f"its classifier has the shapes {shown(shapes)}, but the model's has {shown(wanted)}."
    for name, tensor in classifier.items():
        if tensor.dtype not in _DTYPES or not tensor.isfinite().all():
            yield f"its classifier's {name} is no finite float32, float16 or bfloat16."


def _unexpected(
    directory: Path, modules: dict[str, Matrices], linears: dict[str, LinearPart]
) -> Iterator[str]:
    """Sentences about layers that cannot have an adapter here."""
    own = {name: name.rpartition(".")[2] for name in (*modules, *linears)}
    vocabulary = [name for name in modules if own[name] in _VOCABULARY]
    if vocabulary:
        yield f"adapters of embed_tokens and lm_head are not supported: {shown(vocabulary)}."
    allowed = sorted({own[name] for name in linears} - set(_VOCABULARY))
    others = [name for name in modules if name not in linears and own[name] not in _VOCABULARY]
    if others:
        yield (
            f"While loading {directory}, expected target modules in {{{str(allowed)[1:-1]}}} but "
            f"received {shown(others)}. The model has no layers of these names."
        )


def _misfits(name: str, matrices: Matrices, of_weight: tuple[int, int], rank: int) -> Iterator[str]:
    """Sentences about what does not fit a layer, whose weight has this shape."""
    sizes = {"A": (rank, of_weight[1]), "B": (of_weight[0], rank)}
    for matrix, size in sizes.items():
        tensor = matrices.get(matrix)
        if tensor is None:
            yield f"{name} has no lora_{matrix}."
        elif tuple(tensor.shape) != size:
            shape = shown(tuple(tensor.shape))
            yield f"{name}.lora_{matrix} has shape {shape}, but rank and model ask for {size}."
        elif tensor.dtype not in _DTYPES:
            yield f"{name}.lora_{matrix} is {tensor.dtype}; float32, float16, bfloat16 can be read."


def _raise(file: AdapterFile, reasons: list[str]) -> None:
    if reasons:
        more = len(reasons) - _MOST_REASONS
        rest = [f"And {more} more."] if more > 0 else []
        raise ValueError(f"{file.path}: {' '.join(reasons[:_MOST_REASONS] + rest)}")
