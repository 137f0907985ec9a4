"""Model loader: from a Hugging Face directory to a model in memory, whole or not at all.

(vLLM: vllm/model_executor/model_loader/)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from minivllm.config.speculative import SpeculativeConfig
from minivllm.models.decoder import DecoderForCausalLM
from minivllm.models.hub import ModelSource, draft_model_directory
from minivllm.models.linear import Linear
from minivllm.models.model_config import ModelConfig, read_architecture
from minivllm.models.registry import get_model_class
from minivllm.models.weight_utils import weights_iterator
from minivllm.utils.validation import check


def load_draft_config(
    args: ModelSource,
    config: SpeculativeConfig | None,
    target: ModelConfig,
    read_config: Callable[[Path], ModelConfig],
) -> tuple[Path, ModelConfig] | tuple[None, None]:
    """Find a draft model and read its shapes; None without one. It runs in the target's dtype.

    Raises:
        FileNotFoundError: if it cannot be had.
        ValueError: if its vocabulary is another one.
    """
    if config is None or config.method != "draft_model":
        return None, None
    directory = draft_model_directory(args, config.model)
    draft = read_config(directory)
    ok = draft.vocab_size == target.vocab_size
    allowed = f"the model's own, {target.vocab_size} tokens"
    check(ok, "the speculative model's vocabulary", f"{draft.vocab_size} tokens", allowed)
    return directory, replace(draft, dtype=target.dtype)


def load_config(directory: str | Path) -> ModelConfig:
    """Read the shapes and constants of a Hugging Face directory's model.

    Raises:
        FileNotFoundError: if there is no config.json in it.
        ValueError: if it cannot be read, or describes a model that we do not have.
    """
    architecture = read_architecture(directory)
    model_class = get_model_class(architecture)
    return ModelConfig.from_directory(directory, architecture, model_class.read_config)


def load_model(
    directory: str | Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    load_format: str = "auto",
    use_tqdm: bool = True,
    weights: Iterable[tuple[str, torch.Tensor]] | None = None,
) -> DecoderForCausalLM:
    """Build the model that ``config`` describes and fill it from the directory's checkpoint.

    Args:
        directory: with the weights, see ``weight_utils``.
        config: what its config.json says.
        dtype, device: where each tensor goes as it is read.
        load_format: "auto", "safetensors", "pt"; "dummy" for small random weights and no files.
        use_tqdm: show a progress bar if there are several files.
        weights: names and tensors, if they come from elsewhere than a directory.

    Raises:
        FileNotFoundError: if there are no weights, or the index names a missing file.
        ValueError: if a file is broken, or the tensors are not the ones the model needs.
    """
    with device, _default_dtype(dtype):
        model = get_model_class(config.architecture)(config)
    model.requires_grad_(False).eval()
    if load_format == "dummy":
        _fill_randomly(model)
    else:
        if weights is None:
            weights = weights_iterator(Path(directory), load_format, use_tqdm)
        model.load_weights(weights)
    for module in model.modules():
        if isinstance(module, Linear):
            module.quant_method.process_weights_after_loading(module)
    return model


def _fill_randomly(model: DecoderForCausalLM) -> None:
    """Dummy weights: small random numbers, the same each time (vLLM: DummyModelLoader)."""
    for parameter in model.parameters():
        generator = torch.Generator(parameter.device).manual_seed(1234)
        parameter.uniform_(-1e-3, 1e-3, generator=generator)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
