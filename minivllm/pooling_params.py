"""PoolingParams: what a pooling request wants of its prompt's hidden states.

(vLLM: vllm/pooling_params.py)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from minivllm.utils.validation import check, is_int, is_one_of, known_names_only
from minivllm.utils.vllm_arguments import takes_vllm_defaults

TASKS = ("embed", "classify", "token_embed", "token_classify")
_REMOVED = {  # names of earlier vLLMs, and what takes their place
    "score": "'classify' for a cross-encoder, 'embed' for a bi-encoder",
    "encode": "'token_embed' or 'token_classify'",
}


@takes_vllm_defaults("PoolingParams")
@known_names_only
@dataclass
class PoolingParams:
    """Parameters of a pooling request. It samples nothing: its output is a tensor of numbers.

    Args:
        use_activation: apply the activation behind the head: a norm of 1 for embeddings, softmax or
            sigmoid for classes; None: yes.
        dimensions: keep this many numbers of an embedding, for models that were trained for it
            (Matryoshka, Kusupati et al. 2022).
        step_tag_id: of a reward model: only rows whose token this is.
        returned_token_ids: of a reward model: only these columns.
        task: "embed", "classify", "token_embed" or "token_classify"; None: the engine's.
        skip_reading_prefix_cache: compute all of the prompt; None: only where each token is wanted.
        extra_kwargs: ``compressed_token_type_ids``: index of the first token of type 1 (BERT).

    Raises:
        ValueError: for a value that no model could take.
    """

    use_activation: bool | None = None
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    task: str | None = None
    skip_reading_prefix_cache: bool | None = None
    extra_kwargs: dict[str, Any] | None = None

    def __post_init__(self):
        check_task("task", self.task)
        for name in ("use_activation", "skip_reading_prefix_cache"):
            value = getattr(self, name)
            check(value is None or isinstance(value, bool), name, value, "True, False or None")
        ok = self.dimensions is None or is_int(self.dimensions, 1)
        check(ok, "dimensions", self.dimensions, "an integer of at least 1, or None")
        ok = self.step_tag_id is None or is_int(self.step_tag_id, 0)
        check(ok, "step_tag_id", self.step_tag_id, "a token id, or None")
        ids = self.returned_token_ids
        ok = ids is None or (isinstance(ids, (list, tuple)) and all(is_int(i, 0) for i in ids))
        check(ok, "returned_token_ids", ids, "a list of token ids, or None")
        ok = self.extra_kwargs is None or isinstance(self.extra_kwargs, dict)
        check(ok, "extra_kwargs", self.extra_kwargs, "a dict, or None")
        first = self.first_of_type_1
        ok = first is None or is_int(first, 0)
        check(ok, "compressed_token_type_ids", first, "an index of the prompt, or None")

    @property
    def first_of_type_1(self) -> int | None:
        """Index of the first token of type 1; None if all tokens have type 0."""
        return (self.extra_kwargs or {}).get("compressed_token_type_ids")

    def completed(self, model_config: Any) -> PoolingParams:
        """A copy in which nothing is left open.

        Args:
            model_config: of a pooling model; its pooler_config fills in what is None.

        Raises:
            ValueError: for a task or a parameter that the model does not have.
        """
        config = model_config.pooler_config
        params = replace(self)
        ok = self.first_of_type_1 is None or model_config.type_vocab_size > 1
        allowed = "None: tokens of this model have no types"
        check(ok, "compressed_token_type_ids", self.first_of_type_1, allowed)
        params.task = task = self.task or config.task
        if task not in model_config.supported_tasks:
            has = ", ".join(map(repr, model_config.supported_tasks))
            raise ValueError(f"task={task!r} is not one of this model's; it has {has}.")
        skip = self.skip_reading_prefix_cache
        of_tokens = task.startswith("token_")
        allowed = f"True or None for task={task!r}, whose rows are computed for each token"
        check(skip is not False or not of_tokens, "skip_reading_prefix_cache", skip, allowed)
        if task.endswith("classify") and self.dimensions is not None:
            raise ValueError(f"task={task!r} takes no dimensions: classes are not cut.")
        steps = {"step_tag_id": self.step_tag_id, "returned_token_ids": self.returned_token_ids}
        if config.tok_pooling_type == "STEP" and of_tokens:
            for name, value in steps.items():
                setattr(params, name, getattr(config, name) if value is None else value)
            of_classes = task == "token_classify"
            columns = model_config.num_labels if of_classes else model_config.embedding_size
            for column in params.returned_token_ids or ():
                check(column < columns, "returned_token_ids", column, f"below {columns}")
        elif given := [name for name, value in steps.items() if value is not None]:
            raise ValueError(f"{given[0]} needs a model whose pooling type is 'STEP'.")
        if task.endswith("embed") and params.dimensions is None:
            params.dimensions = config.dimensions
        for name in ("use_activation", "skip_reading_prefix_cache"):
            if getattr(params, name) is None:
                usual = True if name == "use_activation" else of_tokens
                of_model = getattr(config, name, None)
                setattr(params, name, usual if of_model is None else of_model)
        if params.dimensions is not None:
            _check_dimensions(params.dimensions, model_config)
        return params


def check_task(name: str, task: str | None) -> None:
    """Raise ``ValueError`` unless this is a task of pooling, or None."""
    if isinstance(task, str) and task in _REMOVED:
        raise ValueError(f"{name}={task!r} is no task of pooling any more; use {_REMOVED[task]}.")
    check(task is None or is_one_of(task, TASKS), name, task, f"one of {', '.join(TASKS)}, or None")


def _check_dimensions(dimensions: int, model_config: Any) -> None:
    if not model_config.is_matryoshka:
        raise ValueError(
            "this model does not support Matryoshka embeddings; dimensions must be unset "
            f"(received dimensions={dimensions})."
        )
    known = model_config.matryoshka_dimensions
    most = model_config.embedding_size
    check(dimensions <= most, "dimensions", dimensions, f"from 1 to {most}")
    ok = known is None or dimensions in known
    check(ok, "dimensions", dimensions, f"one of {known}, for which the model was trained")
