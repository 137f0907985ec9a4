"""BERT (Devlin et al. 2018): an encoder whose tokens have types, for pairs of texts."""

from __future__ import annotations

from minivllm.models.encoder import CLASSIFIER, EncoderModel, encoder_names


class BertModel(EncoderModel):
    """BERT. A part of its classifier is called a pooler in its checkpoints."""

    base_model_prefix = "bert"
    checkpoint_names = encoder_names("bert") | {
        f"{CLASSIFIER}.dense": "bert.pooler.dense",
        f"{CLASSIFIER}.out_proj": "classifier",
    }
