"""Transform of a plain model into a fast one on a CPU, applied once after loading.

The model's files know nothing of it. What something else has changed before stays as it was
changed: a linear layer with a method of its own keeps it, a layer with other parts runs as its
module does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch

from minivllm.attention.backend import AttentionBackend
from minivllm.cpu import linear
from minivllm.cpu.allocator import keep_freed_memory
from minivllm.cpu.arena import Arena
from minivllm.cpu.threads import ThreadBounds, log_threads
from minivllm.logger import init_logger
from minivllm.lora.layers import LoRALinearMethod
from minivllm.models import ops
from minivllm.models.decoder import Attention, DecoderLayer, DecoderModel
from minivllm.models.encoder import Encoder, EncoderModel
from minivllm.models.layers import Embedding, GatedMLP, RMSNorm, TiedEmbeddingMethod
from minivllm.models.linear import EmbeddingMethod, Linear, LinearMethod, UnquantizedLinearMethod
from minivllm.models.model_config import ModelConfig
from minivllm.models.multimodal import MultiModalEncoder
from minivllm.quantization.base_config import QuantizedLinearMethod
from minivllm.utils.numba_support import numba_obstacle

logger = init_logger(__name__)


def apply(model: DecoderModel | EncoderModel, backend: AttentionBackend) -> None:
    """Let a model on a CPU compute the same numbers in less time.

    Args:
        model: as it was loaded.
        backend: its attention; compiled layers call loops of ``PagedNumba`` only.

    Raises:
        ValueError: for a model that is none of ours, not on a CPU, or that has been here before.
    """
    _check(model)
    model.transforms.append("cpu")
    keep_freed_memory()
    log_threads()
    choose_linear_methods(model)
    what, why = _compile(model, backend)
    logger.info("Using %s: %s.", what, why)
    layers = [module for module in model.model.modules() if isinstance(module, Linear)]
    weights = sum(layer.input_size * layer.output_size for layer in layers)
    bounds = ThreadBounds()
    bounds.bound(model, operations=2 * weights)
    if model.lm_head is not None:
        head = model.config.hidden_size * model.config.vocab_size
        bounds.bound(model.lm_head, operations=2 * head)


def _check(model: DecoderModel | EncoderModel) -> None:
    if not isinstance(model, (DecoderModel, EncoderModel)):
        what = f"a DecoderModel or an EncoderModel, got {type(model).__name__}"
        raise ValueError(f"cpu.apply takes {what}.")
    name = type(model).__name__
    devices = sorted({str(p.device) for p in model.parameters() if p.device.type != "cpu"})
    if devices:
        raise ValueError(f"cpu.apply takes a model on a CPU, got a {name} on {devices[0]}.")
    if "cpu" in model.transforms:
        raise ValueError(f"cpu.apply has been applied to this {name}; it can be only once.")


def choose_linear_methods(model: DecoderModel | EncoderModel | MultiModalEncoder) -> None:
    """Give each plain linear layer the fastest method for its weight, and lay the weight out.

    All weights are in one arena.
    """
    arena = Arena()
    head = model.lm_head if isinstance(model, DecoderModel) else None
    for module in model.modules():
        if isinstance(module, Linear):
            if module is head and _must_be_small(head, model.config):
                module.quant_method = linear.panel_method(module.weight.dtype)
                module.quant_method.process_weights_after_loading(module)
                arena.take(module)
            elif isinstance(module.quant_method, LoRALinearMethod):
                module.quant_method.base = _chosen(module.quant_method.base, module, arena)
            else:
                module.quant_method = _chosen(module.quant_method, module, arena)
    if isinstance(model, DecoderModel) and head is not None and model.config.tie_word_embeddings:
        _share_weight(model.model.embed_tokens, head, model.config.quant_config is None)


def _share_weight(embedding: Embedding, head: Linear, is_plain: bool) -> None:
    """Let a tied embedding read the head's panels, so that the weight is in memory once.

    A small plain one stays: look-ups in panels take some microseconds more.
    """
    is_small = embedding.output_size * embedding.input_size <= linear.IN_CACHE // 4
    if isinstance(head.quant_method, EmbeddingMethod) and not (is_plain and is_small):
        embedding.replace_method(TiedEmbeddingMethod(head))


def _must_be_small(head: Linear, config: ModelConfig) -> bool:
    """True if the head's weight would be the largest part of a quantized model, twice."""
    is_plain = type(head.quant_method) is UnquantizedLinearMethod
    is_tied = config.quant_config is not None and config.tie_word_embeddings
    return is_tied and is_plain and numba_obstacle() is None


def _chosen(method: LinearMethod, layer: Linear, arena: Arena) -> LinearMethod:
    """The fastest method that does what a layer's own does; its own, if something else made it."""
    if type(method) is UnquantizedLinearMethod:
        chosen = linear.choose_method(layer.weight)
        if chosen is not method:
            chosen.process_weights_after_loading(layer)
        arena.take(layer)
        return chosen
    if isinstance(method, QuantizedLinearMethod) and numba_obstacle() is None:
        from minivllm.cpu.quantized import choose_quantized_method  # needs numba

        chosen = choose_quantized_method(method, layer, arena)
        if chosen is not method:
            chosen.process_weights_after_loading(layer)
        return chosen
    return method


def _compile(model: DecoderModel | EncoderModel, backend: AttentionBackend) -> tuple[str, str]:
    """Put compiled layers and fused operations in. Returns what the model runs by now, and why."""
    if isinstance(model, EncoderModel):
        return "modules", "an encoder's steps are so wide that only products and attention count"
    first = cast(DecoderLayer, model.model.layers[0])  # a stage may have no embedding to ask
    dtype = cast(torch.Tensor, first.input_layernorm.weight).dtype
    if (obstacle := numba_obstacle()) is not None:
        return "modules", f"numba is {obstacle}"
    from minivllm.cpu import fused
    from minivllm.cpu.layers import CPULayers, is_known  # needs numba

    if dtype not in fused.DTYPES:
        return "modules", f"{str(dtype).removeprefix('torch.')} has no compiled loops"
    layers = model.model.layers
    num_known = sum(map(is_known, layers)) if type(backend) is CPULayers.backend_class else 0
    if num_known:
        model.model.compiled_layers = CPULayers(model.model, dtype)
    _choose_operations(model)
    if num_known == len(layers):
        return "compiled layers", "a CPU, and numba is installed"
    if num_known:
        return f"compiled layers, {num_known} of {len(layers)}", "the rest runs as modules"
    if type(backend) is not CPULayers.backend_class:
        return "modules with fused operations", "compiled layers need paged_numba attention"
    return "modules with fused operations", f"no layer of {type(model).__name__} can be compiled"


def _choose_operations(model: DecoderModel) -> None:
    """Give modules the fused operations instead of those of ``models/ops.py``."""
    from minivllm.cpu import fused  # needs numba

    for module in model.modules():
        if isinstance(module, RMSNorm) and module.rms_norm is ops.rms_norm:
            module.rms_norm = fused.rms_norm
            module.fused_add_rms_norm = fused.fused_add_rms_norm
        elif isinstance(module, Attention) and module.rotary_embedding is ops.rotary_embedding:
            module.rotary_embedding = fused.rotary_embedding
        elif isinstance(module, GatedMLP) and module.act_and_mul is ops.silu_and_mul:
            module.act_and_mul = fused.silu_and_mul


@contextmanager
def layers_as_modules(model: DecoderModel | EncoderModel) -> Iterator[None]:
    """Context manager: the layers run as modules, whose tensors a memory profile can count."""
    decoder = model.model
    if isinstance(decoder, Encoder):  # they always do
        yield
        return
    compiled = decoder.compiled_layers
    decoder.compiled_layers = None
    try:
        yield
    finally:
        decoder.compiled_layers = compiled
