"""Pooler: a method and a head for each task of a model.

(vLLM: DispatchPooler, vllm/model_executor/layers/pooler/special.py) (notebook 24b)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from minivllm.models.model_config import ModelConfig
from minivllm.pooling.activations import classifier_activation
from minivllm.pooling.heads import ClassificationHead, EmbeddingHead
from minivllm.pooling.metadata import PoolingMetadata
from minivllm.pooling.methods import METHODS, Rows
from minivllm.pooling.sentence_transformers import load_dense
from minivllm.pooling_params import PoolingParams


class Pooler(nn.Module):
    """Pooler of one model.

    Args:
        config: of a pooling model.
        score: the classifier, if there is one; its name is that of its tensors in a checkpoint.
    """

    def __init__(self, config: ModelConfig, score: nn.Module | None = None):
        super().__init__()
        settings = config.pooler_config
        self.methods = {t: settings.pooling_type_of(t) for t in config.supported_tasks}
        self.score = score
        # heads that a checkpoint may hold and nothing here has
        self.ignored_heads = ("lm_head.",) if score is not None else ("lm_head.", "score.")
        if config.supported_tasks[-1] == "token_classify":
            self.head: EmbeddingHead | ClassificationHead = ClassificationHead(
                score,
                classifier_activation(config.hf_config, config.num_labels),
                mean=settings.logit_mean,
                sigma=settings.logit_sigma,
            )
        else:
            self.head = EmbeddingHead(load_dense(config.dense_layers, config.hidden_size))

    def forward(self, hidden: torch.Tensor, metadata: PoolingMetadata) -> Rows:
        """Numbers of the sequences whose prompt is complete, in float32.

        Args:
            hidden: ``[num_tokens, hidden_size]``, the rows of the step.
            metadata: which rows are whose.

        Returns:
            One entry per sequence: ``[size]``, or for a task of tokens ``[num_tokens, size]``; None
            where the prompt goes on.
        """
        by_method: dict[str, list[int]] = {}
        for index, params in enumerate(metadata.pooling_params):
            by_method.setdefault(self._method(params), []).append(index)
        found: Rows = [None] * len(metadata.pooling_params)
        chunks = hidden[: sum(metadata.query_lens)].split(metadata.query_lens)
        for method, indices in by_method.items():
            rows = hidden
            some = metadata
            if len(by_method) > 1:
                rows = torch.cat([chunks[i] for i in indices])
                some = metadata.of(indices)
            for index, row in zip(indices, METHODS[method](rows, some), strict=True):
                found[index] = row
        return self._through_head(found, metadata)

    def _method(self, params: PoolingParams) -> str:
        assert params.task is not None, "the input processor has completed it"
        return self.methods[params.task]

    def _through_head(self, rows: Rows, metadata: PoolingMetadata) -> Rows:
        """Vectors go through the head together, as far as they want the same of it."""
        together: dict[tuple, dict[int, torch.Tensor]] = {}
        for index, (row, params) in enumerate(zip(rows, metadata.pooling_params, strict=True)):
            if row is None:
                continue
            if row.ndim == 1:
                key = params.task, params.use_activation, params.dimensions
                together.setdefault(key, {})[index] = row
                continue
            numbers = self.head.project(row)
            if self._method(params) == "STEP":
                numbers = _steps(numbers, metadata.prompt_token_ids[index], params)
            rows[index] = self.head.activate(numbers, params)
        for alike in together.values():
            params = metadata.pooling_params[next(iter(alike))]
            projected = self.head.project(torch.stack(list(alike.values())))
            numbers = self.head.activate(projected, params)
            for index, vector in zip(alike, numbers, strict=True):
                rows[index] = vector
        return rows


def _steps(numbers: torch.Tensor, token_ids: list[int], params: PoolingParams) -> torch.Tensor:
    """Columns of the returned tokens, then rows of the step tag: scores of a solution's steps."""
    if params.returned_token_ids:
        numbers = numbers[:, params.returned_token_ids]
    if params.step_tag_id is not None:
        numbers = numbers[[i for i, t in enumerate(token_ids) if t == params.step_tag_id]]
    return numbers


class PoolerFromTokens(Pooler):
    """Pooler whose classifier is made of rows of the language model's head.

    Two tokens: the difference of "yes" and "no" (``from_2_way_softmax``), whose sigmoid is the
    softmax of both; others: a row for each (``no_post_processing``). (vLLM:
    ``seq_cls_model_loader`` in vllm/model_executor/models/adapters.py)

    Args:
        config, score: as for ``Pooler``.
        token_ids: the rows.
        difference: whether there are two, and one is taken from the other.
        head_names: of the tensor with the rows; the first that is there, of a tied head the last.
    """

    def __init__(
        self,
        config: ModelConfig,
        score: nn.Module,
        token_ids: list[int],
        difference: bool,
        head_names: tuple[str, ...],
    ):
        super().__init__(config, score)
        self.token_ids = token_ids
        self.difference = difference
        self.head_names = head_names

    def convert(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield a checkpoint's tensors, and the classifier's behind them."""
        found = {}
        for name, tensor in weights:
            yield name, tensor
            if name in self.head_names:
                found[name] = tensor[self.token_ids].float()
        for name in self.head_names:
            if name in found:
                rows = found[name]
                yield "score.weight", rows[1:] - rows[:1] if self.difference else rows
                return
