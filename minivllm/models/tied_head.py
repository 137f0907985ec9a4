"""Tied heads: whether a checkpoint's head is its embedding, whatever its config.json says.

(vLLM: ``ModelConfig.maybe_untie_word_embeddings``, vllm/config/model.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from minivllm.logger import init_logger
from minivllm.models.checkpoint import CheckpointMixin
from minivllm.models.model_config import ModelConfig

logger = init_logger(__name__)

_HEAD = "lm_head"
_ROWS = 4096  # that are compared at once


class TiedHead:
    """Head and embedding of a checkpoint: noticed as its tensors pass by, then compared.

    Args:
        model_class: knows their names.
        directory: of the checkpoint, for messages.
    """

    def __init__(self, model_class: type[CheckpointMixin], directory: str | Path):
        self._file = Path(directory) / "config.json"
        name = model_class.checkpoint_name("model.embed_tokens")
        # checkpoints that were saved without a head leave a prefix out
        self._embeddings = name, name.removeprefix(f"{model_class.base_model_prefix}.")
        self._head: dict[str, torch.Tensor] = {}
        self._embedding: dict[str, torch.Tensor] = {}

    def watch(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield a checkpoint's tensors, and keep those that are to be compared."""
        for name, tensor in weights:
            layer, _, kind = name.rpartition(".")
            if layer == _HEAD and kind != "bias":
                self._head[kind] = tensor
            elif layer in self._embeddings:
                self._embedding[kind] = tensor
            yield name, tensor

    def checked(self, config: ModelConfig, dtype: torch.dtype) -> ModelConfig:
        """The config with ``tie_word_embeddings`` as the tensors have it; what differs is logged.

        Args:
            config: of the model.
            dtype: in which it will have them, and must not tell them apart.
        """
        if not config.tie_word_embeddings and self._embedding and not self._head:
            logger.warning(
                "%s says tie_word_embeddings=false, but the checkpoint has no lm_head; the "
                "embedding is used in its place. Set it to true to silence this.", self._file,
            )  # fmt: skip
            return replace(config, tie_word_embeddings=True)
        if config.tie_word_embeddings and self._differ(dtype):
            logger.warning(
                "%s says tie_word_embeddings=true, but the checkpoint's lm_head differs from its "
                "embedding; both are used as they are. Set it to false to silence this.",
                self._file,
            )
            return replace(config, tie_word_embeddings=False)
        return config

    def _differ(self, dtype: torch.dtype) -> bool:
        """True if both are there, and are not the same floats."""
        if not self._head or not self._embedding:
            return False
        head = self._head.get("weight")
        embedding = self._embedding.get("weight")
        if len(self._head | self._embedding) > 1 or head is None or embedding is None:
            return True  # one is quantized
        if head.shape != embedding.shape:
            return True
        pairs = zip(head.split(_ROWS), embedding.split(_ROWS), strict=True)
        return not all(torch.equal(a.to(dtype), b.to(dtype)) for a, b in pairs)
