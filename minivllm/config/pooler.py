"""PoolerConfig: what a pooling model does with its hidden states.

(vLLM: vllm/config/pooler.py)
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from minivllm.pooling_params import check_task
from minivllm.utils.validation import (
    check,
    check_names,
    is_int,
    is_number,
    is_one_of,
    is_text,
    known_names_only,
)
from minivllm.utils.vllm_arguments import takes_vllm_defaults, without_defaults

SEQ_POOLING_TYPES = ("CLS", "LAST", "MEAN")  # a row per prompt
TOK_POOLING_TYPES = ("ALL", "STEP")  # rows per prompt


@takes_vllm_defaults("PoolerConfig")
@known_names_only
@dataclass
class PoolerConfig:
    """Settings of a pooler; None: what the model's files say, or its family's usual.

    Args:
        task: what requests get that name none: "embed", "classify", "token_embed" or
            "token_classify".
        pooling_type: short for one of the next two.
        seq_pooling_type: the row that becomes a prompt's vector: "LAST", "CLS" (the first), or
            "MEAN" of all.
        tok_pooling_type: the rows of a task of tokens: "ALL", or "STEP": those of a step tag.
        use_activation: norm, softmax or sigmoid behind the head.
        dimensions: how many numbers of an embedding are kept.
        logit_mean, logit_sigma: of a classifier's logits, ``(logit - mean) / sigma``.
        step_tag_id: the token of the rows that STEP keeps.
        returned_token_ids: the columns that STEP keeps.
        enable_chunked_processing, max_embed_len: of long inputs; only their default is here.

    Raises:
        ValueError: for a value that is not known.
    """

    task: str | None = None
    pooling_type: str | None = None
    seq_pooling_type: str | None = None
    tok_pooling_type: str | None = None
    use_activation: bool | None = None
    dimensions: int | None = None
    enable_chunked_processing: bool | None = None
    max_embed_len: int | None = None
    logit_mean: float | None = None
    logit_sigma: float | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None

    def __post_init__(self):
        check_task("pooler_config.task", self.task)
        known = {"seq_pooling_type": SEQ_POOLING_TYPES, "tok_pooling_type": TOK_POOLING_TYPES}
        if (kind := self.pooling_type) is not None:
            allowed = (*SEQ_POOLING_TYPES, *TOK_POOLING_TYPES)
            check(is_one_of(kind, allowed), "pooling_type", kind, f"one of {', '.join(allowed)}")
            name = "seq_pooling_type" if kind in SEQ_POOLING_TYPES else "tok_pooling_type"
            other = getattr(self, name)
            check(other in (None, kind), name, other, f"None beside pooling_type={kind!r}")
            setattr(self, name, kind)
            self.pooling_type = None
        for name, types in known.items():
            kind = getattr(self, name)
            ok = kind is None or is_one_of(kind, types)
            check(ok, name, kind, f"one of {', '.join(types)}, or None")
        value = self.use_activation
        ok = value is None or isinstance(value, bool)
        check(ok, "use_activation", value, "True, False or None")
        for name, low in (("dimensions", 1), ("step_tag_id", 0)):
            value = getattr(self, name)
            ok = value is None or is_int(value, low)
            check(ok, name, value, f"an integer of at least {low}, or None")
        for name in ("logit_mean", "logit_sigma"):
            value = getattr(self, name)
            check(value is None or is_number(value), name, value, "a number, or None")
        check(self.logit_sigma != 0, "logit_sigma", self.logit_sigma, "not 0: logits are divided")
        ids = self.returned_token_ids
        ok = ids is None or (isinstance(ids, (list, tuple)) and all(is_int(i, 0) for i in ids))
        check(ok, "returned_token_ids", ids, "a list of integers, or None")
        for name in ("enable_chunked_processing", "max_embed_len"):
            value = getattr(self, name)
            check(not value, name, value, "None: an input longer than the model is refused")

    def pooling_type_of(self, task: str) -> str | None:
        """The pooling type of a task; None until it is decided."""
        return self.tok_pooling_type if task.startswith("token_") else self.seq_pooling_type


def make_pooler_config(given: Any, name: str = "pooler_config") -> PoolerConfig | None:
    """Make the PoolerConfig of an argument: one, a dict of its fields, or None.

    One that sets nothing is None, as it asks for nothing.

    Raises:
        ValueError: for another type, a name that is not known, or a value as ``PoolerConfig``.
    """
    if given is None or isinstance(given, PoolerConfig):
        return None if given == PoolerConfig() else given
    ok = isinstance(given, dict) and all(map(is_text, given))
    check(ok, name, given, "a PoolerConfig, a dict of its fields, or None")
    if "normalize" in given:
        raise ValueError(f"normalize was removed from {name}; use use_activation instead.")
    given = without_defaults(name, "PoolerConfig", given)
    check_names(name, given, [field.name for field in fields(PoolerConfig)])
    return make_pooler_config(PoolerConfig(**given))
