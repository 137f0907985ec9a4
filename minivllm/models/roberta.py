"""RoBERTa (Liu et al. 2019): BERT trained longer, its positions behind that of the padding.

XLM-RoBERTa (Conneau et al. 2019) is the same in a hundred languages.
"""

from __future__ import annotations

from typing import Any

from minivllm.models.encoder import CLASSIFIER, EncoderModel, encoder_names
from minivllm.utils.validation import check, is_int


class RobertaModel(EncoderModel):
    """RoBERTa; a part of its position table is the padding's."""

    base_model_prefix = "roberta"
    checkpoint_names = encoder_names("roberta") | {CLASSIFIER: "classifier"}

    @classmethod
    def read_config(cls, hf) -> dict[str, Any]:
        ok = is_int(hf.pad_token_id, 0)
        check(ok, "pad_token_id in config.json", hf.pad_token_id, "a token id")
        offset = hf.pad_token_id + 1  # the first rows of the positions are the padding's
        return super().read_config(hf) | {
            "position_offset": offset,
            "max_position_embeddings": hf.max_position_embeddings - offset,
        }


class XLMRobertaModel(RobertaModel):
    """XLM-RoBERTa: another vocabulary, the same names and shapes."""
