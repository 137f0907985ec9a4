"""Heads of a pooler: from pooled rows to embeddings or classes, in float32.

(vLLM: vllm/model_executor/layers/pooler/seqwise/heads.py)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from minivllm.pooling.activations import Activation
from minivllm.pooling.sentence_transformers import Projector
from minivllm.pooling_params import PoolingParams


class EmbeddingHead(nn.Module):
    """Embeddings: dense layers if there are any, the first dimensions, then a norm of 1.

    Args:
        projector: the dense layers of Sentence Transformers, one after the other.
    """

    def __init__(self, projector: Projector | None = None):
        super().__init__()
        self.projector = projector

    def project(self, rows: torch.Tensor) -> torch.Tensor:
        """``[..., hidden_size]`` to ``[..., embedding_size]``."""
        rows = rows.float()
        return rows if self.projector is None else self.projector(rows)

    def activate(self, numbers: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        """Cut to the dimensions that are asked for, and only then normalize."""
        numbers = numbers[..., : params.dimensions]
        return F.normalize(numbers, dim=-1) if params.use_activation else numbers


class ClassificationHead(nn.Module):
    """Classes: the classifier's logits, moved and scaled, then the activation.

    Args:
        classifier: ``[..., hidden_size]`` to ``[..., num_labels]``; None: rows are taken as logits.
        activation: what makes probabilities of logits.
        mean, sigma: logits become ``(logit - mean) / sigma`` (Platt scaling).
    """

    def __init__(
        self,
        classifier: nn.Module | None,
        activation: Activation,
        mean: float | None = None,
        sigma: float | None = None,
    ):
        super().__init__()
        self.classifier = classifier
        self.activation = activation
        self.mean = mean
        self.sigma = sigma

    def project(self, rows: torch.Tensor) -> torch.Tensor:
        """``[..., hidden_size]`` to logits, ``[..., num_labels]``."""
        logits = rows.float()
        return logits if self.classifier is None else self.classifier(logits)

    def activate(self, logits: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        """Move and scale logits, and make probabilities of them if they are asked for."""
        if self.mean is not None:
            logits = logits - self.mean
        if self.sigma is not None:
            logits = logits / self.sigma
        return self.activation(logits) if params.use_activation else logits


class EncoderClassifier(nn.Module):
    """Classifier of BERT and RoBERTa: a dense layer and tanh, then a logit for each class."""

    def __init__(self, hidden_size: int, num_labels: int):
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.out_proj = nn.Linear(hidden_size, num_labels)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.out_proj(self.dense(rows).tanh())
