"""Model loader: from a Hugging Face directory to a model in memory, whole or not at all.

(vLLM: vllm/model_executor/model_loader/)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import nn

from minivllm.config.speculative import SpeculativeConfig
from minivllm.distributed.group import Group
from minivllm.models.checkpoint import CheckpointMixin, LinearPart
from minivllm.models.decoder import DecoderModel
from minivllm.models.hub import ModelSource, draft_model_directory
from minivllm.models.linear import EmbeddingMethod, Linear, LinearMethod
from minivllm.models.model_config import ModelConfig, read_architecture
from minivllm.models.multimodal import MultiModalEncoder
from minivllm.models.pipeline_parallel import StageModel, stage_class, take_stage
from minivllm.models.registry import MULTIMODAL_MODELS, get_encoder_class, get_model_class
from minivllm.models.tensor_parallel import divide
from minivllm.models.tied_head import TiedHead
from minivllm.models.weight_utils import weights_iterator
from minivllm.utils.validation import check, is_text


def load_draft_config(
    args: ModelSource,
    config: SpeculativeConfig | None,
    target: ModelConfig,
    read_config: Callable[[Path], ModelConfig],
) -> tuple[Path, ModelConfig] | tuple[None, None]:
    """Find a draft model and read its shapes; None without one. It runs in the target's dtype.

    Raises:
        FileNotFoundError: if it cannot be had.
        ValueError: if its vocabulary is another one, or a half reads pictures or sound.
    """
    if config is None or config.method != "draft_model":
        return None, None
    directory = draft_model_directory(args, config.model)
    ok = not target.is_multimodal
    check(ok, "speculative_config.method", config.method, "'ngram' with pictures or sound")
    draft = read_config(directory)
    check(not draft.is_multimodal, "the speculative model", draft.architecture, "a text model")
    ok = draft.vocab_size == target.vocab_size
    allowed = f"the model's own, {target.vocab_size} tokens"
    check(ok, "the speculative model's vocabulary", f"{draft.vocab_size} tokens", allowed)
    return directory, replace(draft, dtype=target.dtype)


def load_config(
    directory: str | Path,
    hf_overrides: dict[str, Any] | None = None,
    generation_directory: Path | None = None,
) -> ModelConfig:
    """Read the shapes and constants of a Hugging Face directory's model.

    Args:
        directory: with a config.json.
        hf_overrides: fields of it, to be read in place of its own; ``architectures`` is one.
        generation_directory: where to read generation_config.json; None: with the others.

    Raises:
        FileNotFoundError: if there is no config.json in it.
        ValueError: if it cannot be read, or describes a model that we do not have.
    """
    architecture = read_architecture(directory)
    if hf_overrides and "architectures" in hf_overrides:
        names = hf_overrides["architectures"]
        ok = isinstance(names, list) and names != [] and is_text(names[0])
        check(ok, "hf_overrides['architectures']", names, "a list with an architecture's name")
        architecture = names[0]
    is_multimodal = architecture in MULTIMODAL_MODELS
    get_class = get_encoder_class if is_multimodal else get_model_class
    read_config = get_class(architecture).read_config
    return ModelConfig.from_directory(
        directory,
        architecture,
        read_config,
        hf_overrides=hf_overrides,
        generation_directory=generation_directory,
    )


def load_model(
    directory: str | Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    load_format: str = "auto",
    use_tqdm: bool = True,
    weights: Iterable[tuple[str, torch.Tensor]] | None = None,
    pooler: Any = None,
    group: Group | None = None,
    stages: Group | None = None,
) -> DecoderModel:
    """Build the model that ``config`` describes and fill it from the directory's checkpoint.

    Tensors of a file are views of it: a rank that takes a part of one reads no more of it.

    Args:
        directory: with the weights, see ``weight_utils``.
        config: what its config.json says; whether the head is the embedding, the weights do.
        dtype, device: where each tensor goes as it is read.
        load_format: "auto", "safetensors", "pt"; "dummy" for small random weights and no files.
        use_tqdm: show a progress bar if there are several files.
        weights: names and tensors, if they come from elsewhere than a directory; their names
            and shapes have been checked.
        pooler: of a pooling model, in the place of the head; from a module that this one must not
            import (``pooling``). None: a head.
        group: ranks that share its layers, of which this is one; None: it is alone.
        stages: ranks that have some of its layers each; None: it has all.

    Raises:
        FileNotFoundError: if there are no weights, or the index names a missing file.
        ValueError: if a file is broken, or the tensors are not the ones the model needs. But for
            what only their numbers tell, this is found before memory is asked for.
    """
    stored: dict[str, torch.Tensor] = {}
    dummy = load_format == "dummy"
    convert = getattr(pooler, "convert", iter)
    # 1. Names, shapes and dtypes of the checkpoint's tensors, without their numbers.
    model_class = get_model_class(config.architecture)
    read = partial(_read, directory, config, load_format)
    has_stages = stages is not None and stages.size > 1
    if weights is None and not dummy:
        head = TiedHead(model_class, directory)
        watched = head.watch(read(use_tqdm=False))
        stored = {name: tensor.to("meta") for name, tensor in convert(watched)}
        if pooler is None and not config.is_encoder_only:
            config = head.checked(config, dtype)
        del head
    # 2. The whole model, without memory: what does not fit together is found here.
    with torch.device("meta"), _default_dtype(dtype), _named(directory):
        model = (stage_class(model_class) if has_stages else model_class)(config, pooler)
        _choose_linear_methods(model, config.quant_config, stored)
    model.requires_grad_(False).eval()
    with _named(directory):
        if weights is None and not dummy:
            model.load_weights(stored.items())  # names, shapes and dtypes, and nothing else yet
        # 3. This rank's part of it.
        if group is not None and group.size > 1:
            with torch.device("meta"), _default_dtype(dtype):
                model = divide(model, group)
        if stages is not None and isinstance(model, StageModel):
            take_stage(model, stages)
        # 4. Memory, and the numbers.
        _allocate(model, device)
        if dummy:
            _fill_randomly(model)
        else:
            if weights is None:
                weights = read(use_tqdm=use_tqdm)
            model.load_weights(convert(weights))
        for module in model.modules():
            if isinstance(module, Linear):
                module.quant_method.process_weights_after_loading(module)
    return model


def load_encoder(
    directory: str | Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    load_format: str = "auto",
) -> MultiModalEncoder:
    """Build what makes embeddings of pictures or sound, and fill it from the model's checkpoint.

    Every rank has the whole of it, in floats. Arguments and errors are those of ``load_model``.
    """
    assert config.multimodal_architecture is not None, "a text model has no encoder"
    encoder_class = get_encoder_class(config.multimodal_architecture)
    with torch.device("meta"), _default_dtype(dtype), _named(directory):
        encoder = encoder_class(config)
    encoder.requires_grad_(False).eval()
    weights = partial(weights_iterator, Path(directory), load_format, use_tqdm=False)
    with _named(directory):
        if load_format != "dummy":
            encoder.load_weights((name, tensor.to("meta")) for name, tensor in weights())
        _allocate(encoder, device)
        if load_format == "dummy":
            _fill_randomly(encoder)
        else:
            encoder.load_weights(weights())
    return encoder


def _read(
    directory: str | Path, config: ModelConfig, load_format: str, use_tqdm: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """A checkpoint's tensors; of a model of pictures or sound those of its decoder."""
    weights = weights_iterator(Path(directory), load_format, use_tqdm)
    if config.multimodal_architecture is None:
        return weights
    return get_encoder_class(config.multimodal_architecture).language_weights(weights)


class ChoosesMethods(Protocol):
    """A QuantizationConfig, from a module that this one must not import (``quantization``)."""

    ignored_tensors: tuple[str, ...]

    def get_quant_method(
        self, layer: Linear, parts: Mapping[str, LinearPart], stored: Mapping[str, torch.Tensor]
    ) -> LinearMethod | None: ...

    def get_embedding_method(
        self, parts: Mapping[str, LinearPart], stored: Mapping[str, torch.Tensor]
    ) -> LinearMethod | None: ...


def _choose_linear_methods(
    model: DecoderModel, quant_config: ChoosesMethods | None, stored: dict[str, torch.Tensor]
) -> None:
    """Give quantized layers their methods, by their names in the checkpoint.

    Args:
        model: without memory yet.
        quant_config: chooses them; None: weights are floats.
        stored: the checkpoint's tensors, without memory either.
    """
    if quant_config is None:
        return
    model.ignored_tensors += quant_config.ignored_tensors
    prefix = model.base_model_prefix
    stored = {f"{prefix}.{name}": tensor for name, tensor in stored.items()} | stored
    layers: dict[Linear, dict[str, LinearPart]] = {}
    for name, part in model.checkpoint_linears().items():
        layers.setdefault(part.layer, {})[name] = part
    for layer, parts in layers.items():
        if layer is model.lm_head and model.config.tie_word_embeddings:
            continue  # it is the embedding
        method = quant_config.get_quant_method(layer, parts, stored)
        if method is None and layer is model.lm_head:
            method = quant_config.get_embedding_method(parts, stored)
        if method is not None:
            layer.replace_method(method)
    _choose_embedding_method(model, quant_config, stored)


def _choose_embedding_method(
    model: DecoderModel, quant_config: ChoosesMethods, stored: dict[str, torch.Tensor]
) -> None:
    """Keep the embedding, and a head that is tied to it, in the checkpoint's bits."""
    embedding = model.model.embed_tokens
    head = model.lm_head
    path = "model.embed_tokens"
    rows = slice(0, embedding.output_size)
    part = LinearPart(path, cast(Linear, embedding), "embed_tokens", rows)
    method = quant_config.get_embedding_method({model.checkpoint_name(path): part}, stored)
    if method is None:
        return
    assert isinstance(method, EmbeddingMethod), "it has to read rows"
    embedding.replace_method(method)
    if model.config.tie_word_embeddings and head is not None:
        del head.weight
        head.quant_method = method
        for name, parameter in embedding.named_parameters(recurse=False):
            head.register_parameter(name, parameter)


def _allocate(model: CheckpointMixin, device: torch.device) -> None:
    """Give parameters memory on the device; one that is shared stays shared."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter not in made:
                # not empty_like: it imports sympy
                empty = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
                made[parameter] = nn.Parameter(empty, requires_grad=False)
            module.register_parameter(name, made[parameter])
        for name, buffer in module.named_buffers(recurse=False):
            module.register_buffer(name, buffer.to(device))


def _fill_randomly(model: CheckpointMixin) -> None:
    """Dummy weights: small random numbers, the same each time (vLLM: DummyModelLoader).

    A rank draws those of the whole model, and takes its share. Packed ones are zeros.
    """
    for name, parameter in model.named_parameters():
        generator = torch.Generator(parameter.device).manual_seed(1234)
        if parameter.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            parameter.zero_()
        elif name in model.parameter_cuts:
            cut = model.parameter_cuts[name]
            whole = torch.empty(cut.shape, dtype=parameter.dtype, device=parameter.device)
            parameter.copy_(cut.of(whole.uniform_(-1e-3, 1e-3, generator=generator)))
        else:
            parameter.uniform_(-1e-3, 1e-3, generator=generator)


@contextmanager
def _named(directory: str | Path) -> Iterator[None]:
    """Say in an error of a checkpoint's tensors which checkpoint it is."""
    try:
        yield
    except ValueError as error:
        if str(directory) in str(error):
            raise
        raise ValueError(f"{directory}: {error}") from error


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
