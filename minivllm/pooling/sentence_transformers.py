"""Sentence Transformers' files: ``modules.json`` says what comes behind the model.

A directory of that library has a transformer, a pooling method, perhaps dense layers and a norm,
each with a small config of its own. (vLLM:
``get_pooling_config`` in vllm/transformers_utils/config.py)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from minivllm.models.weight_utils import weights_iterator
from minivllm.utils.json_files import read_json_array, read_json_object
from minivllm.utils.validation import check, is_int, is_number

# Settings of the transformer itself; the first of these files that says something counts.
_TEXT_FILES = tuple(
    f"sentence_{family}_config.json"
    for family in (
        "bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet",
    )
)  # fmt: skip
_MOST_TOKENS = 2**22
_MODES = {  # keys of 1_Pooling/config.json in its older form
    "pooling_mode_cls_token": "CLS",
    "pooling_mode_mean_tokens": "MEAN",
    "pooling_mode_lasttoken": "LAST",
}
_MODE_NAMES = {"cls": "CLS", "mean": "MEAN", "lasttoken": "LAST"}  # in its newer one
_ACTIVATIONS = {"Identity": nn.Identity, "Tanh": nn.Tanh, "ReLU": nn.ReLU, "GELU": nn.GELU,
                "Sigmoid": nn.Sigmoid, "SiLU": nn.SiLU}  # fmt: skip


class DenseLayer(NamedTuple):
    """One dense layer: where its files are, its widths, and what follows it."""

    directory: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str


class SentenceTransformersModules(NamedTuple):
    """Modules behind the transformer, as ``modules.json`` lists them."""

    pooling_type: str
    dense: tuple[DenseLayer, ...]
    normalize: bool


def read_modules(directory: Path) -> SentenceTransformersModules | None:
    """Read ``modules.json`` and the configs that it names; None if there is none.

    Raises:
        ValueError: if a file cannot be read, names a module that we do not have, or has them in
            another order than we do them.
    """
    file = directory / "modules.json"
    if not file.is_file():
        return None
    modules = read_json_array(file)
    kinds: list[str] = []
    pooling_type = ""
    dense = []
    for module in modules:
        name = module.get("path") if isinstance(module, dict) else None
        if not isinstance(name, str) or not isinstance(module.get("type"), str):
            raise ValueError(f"{file}: each module must have a type and a path, got {module!r}.")
        kind = module["type"].rpartition(".")[2]
        path = directory / name
        kinds.append(kind)
        if kind == "Pooling":
            pooling_type = _pooling_type(path / "config.json")
        elif kind == "Dense":
            dense.append(_dense_layer(path))
        elif kind not in ("Transformer", "Normalize"):
            allowed = "Transformer, Pooling, Dense and Normalize are"
            raise ValueError(f"{file}: module {kind!r} is not supported; {allowed}.")
    num_norms = kinds.count("Normalize")
    if kinds != ["Transformer", "Pooling", *["Dense"] * len(dense), *["Normalize"] * num_norms]:
        raise ValueError(
            f"{file} must list Transformer, Pooling, then Dense layers, then Normalize, got "
            f"{', '.join(kinds) or 'nothing'}."
        )
    return SentenceTransformersModules(pooling_type, tuple(dense), num_norms > 0)


class TextSettings(NamedTuple):
    """Settings of a text, before the transformer reads it."""

    max_seq_length: int | None  # tokens; None: as many as the model knows positions
    do_lower_case: bool


def read_text_settings(directory: Path) -> TextSettings:
    """Read ``sentence_bert_config.json``, or one of its older names.

    (vLLM: ``get_sentence_transformer_tokenizer_config``; as there, a file without
    ``max_seq_length`` says nothing)

    Raises:
        ValueError: if it cannot be read, or holds other values.
    """
    for file in (directory / name for name in _TEXT_FILES):
        if not file.is_file() or not (config := read_json_object(file)):
            continue
        if "max_seq_length" not in config:
            break
        length = config["max_seq_length"]
        ok = length is None or (is_int(length, 1) and length <= _MOST_TOKENS)
        check(ok, f"max_seq_length in {file}", length, f"from 1 to {_MOST_TOKENS}, or null")
        lower = config.get("do_lower_case") or False
        check(isinstance(lower, bool), f"do_lower_case in {file}", lower, "true or false")
        return TextSettings(length, lower)
    return TextSettings(None, False)


def read_model_max_length(directory: Path) -> int | None:
    """The longest text that a tokenizer's ``tokenizer_config.json`` names; None if it names none.

    Raises:
        ValueError: if the file cannot be read.
    """
    file = directory / "tokenizer_config.json"
    length = read_json_object(file).get("model_max_length") if file.is_file() else None
    return int(length) if is_number(length) and length >= 1 else None


Projector = Callable[[torch.Tensor], torch.Tensor]


def load_dense(layers: tuple[DenseLayer, ...], hidden_size: int) -> Projector | None:
    """Load dense layers as one function in float32; None if there are none.

    Raises:
        FileNotFoundError: if there is no file of weights.
        ValueError: if widths do not fit, or a file lacks its weight.
    """
    modules: list[nn.Module] = []
    for layer in layers:
        if layer.in_features != hidden_size:
            raise ValueError(
                f"{layer.directory}: in_features is {layer.in_features}, but the rows that come "
                f"to it have {hidden_size} numbers."
            )
        modules += [_linear(layer), _ACTIVATIONS[layer.activation]()]
        hidden_size = layer.out_features
    if not modules:
        return None
    projector = nn.Sequential(*modules).requires_grad_(False)
    return lambda rows: projector.to(rows.device)(rows)


def _linear(layer: DenseLayer) -> nn.Linear:
    tensors = dict(weights_iterator(layer.directory, use_tqdm=False))
    linear = nn.Linear(layer.in_features, layer.out_features, layer.bias, dtype=torch.float32)
    for name, parameter in linear.named_parameters():
        tensor = tensors.get(f"linear.{name}", tensors.get(name))
        if tensor is None or tensor.shape != parameter.shape:
            found = "is missing" if tensor is None else f"has shape {tuple(tensor.shape)}"
            raise ValueError(
                f"{layer.directory}: linear.{name} {found}, not {tuple(parameter.shape)}."
            )
        parameter.data.copy_(tensor)
    return linear


def _dense_layer(directory: Path) -> DenseLayer:
    file = directory / "config.json"
    config = _read_config(file)
    width = config.get("in_features")
    size = config.get("out_features")
    if not (is_int(width, 1) and is_int(size, 1) and max(width, size) < 2**24):
        raise ValueError(
            f"{file}: in_features and out_features must be sizes, got {width!r} and {size!r}."
        )
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise ValueError(f"{file}: activation_function {activation!r} is not one of {known}.")
    return DenseLayer(
        directory,
        in_features=width,
        out_features=size,
        bias=config.get("bias", True) is True,
        activation=activation,
    )


def _pooling_type(file: Path) -> str:
    config = _read_config(file)
    modes = [name for key, name in _MODES.items() if config.get(key) is True]
    if isinstance(config.get("pooling_mode"), str):
        modes = [_MODE_NAMES.get(config["pooling_mode"], "")]
    others = [k for k, v in config.items() if v is True and k.startswith("pooling_mode")]
    if len(modes) != 1 or not modes[0] or len(others) > 1:
        asked = config.get("pooling_mode") or ", ".join(others) or "none"
        raise ValueError(
            f"{file}: pooling mode {asked!r} is not supported; one of cls, mean and lasttoken is."
        )
    return modes[0]


def _read_config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ValueError(f"{file} cannot be read: there is no such file.")
    return read_json_object(file)
