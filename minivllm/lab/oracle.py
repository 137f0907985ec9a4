"""The oracle: the definition of correct output. No cache, no batch; each token from scratch.

It shares the weights and the layers with the engine, and nothing of what makes it an engine:
attention is a dense matrix, and a token is chosen by ``sampling/reference.py``. Tests hold the
engine to it (and the layers to transformers').
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minivllm.attention.selector import make_backend
from minivllm.models.decoder import DecoderModel
from minivllm.models.mrope import MRopePositions
from minivllm.models.multimodal import MultiModalEncoder
from minivllm.multimodal.inputs import MultiModalFeatureSpec
from minivllm.request import Request
from minivllm.sampling.reference import choose
from minivllm.structured_output.backend_types import StructuredOutputGrammar


@dataclass
class OracleOutput:
    """The tokens that a request must produce, and each one's margin: how far the numbers may be
    off before token ``i`` would be another.
    """

    token_ids: list[int]
    margins: list[float]
    finish_reason: str
    stop_reason: int | None


class DenseAttention:
    """Dense causal attention over one sequence, in place of a StepAttention with its KV cache."""

    backend = None  # which compiled layers would ask for

    def layer(self, index: int) -> DenseAttention:
        """Returns itself: dense attention is the same in every layer."""
        return self

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        sliding_window: int | None = None,
    ) -> torch.Tensor:
        """Compute ``AttentionBackend.forward`` from the definition."""
        group = query.shape[1] // key.shape[1]
        n = len(query)
        key, value = (t.repeat_interleave(group, 1) for t in (key, value))
        scores = torch.einsum("ihd,jhd->hij", query, key) * scale
        positions = torch.arange(n, device=query.device)
        distance = positions[:, None] - positions
        unseen = (distance < 0) | (distance >= (sliding_window or n))
        weights = scores.masked_fill(unseen, -torch.inf).softmax(-1)
        return torch.einsum("hij,jhd->ihd", weights, value)


@dataclass
class GivenEmbeddings:
    """Embeddings of a prompt's pictures and sounds: its places that have one, and these rows."""

    places: list[int]
    rows: torch.Tensor  # [len(places), hidden_size]
    positions: MRopePositions | None = None  # of all the sequence's tokens; None: their places


@torch.inference_mode()
def encode(
    encoder: MultiModalEncoder, features: list[MultiModalFeatureSpec], device: torch.device
) -> GivenEmbeddings | None:
    """Encode a prompt's items one by one, with attention by definition; None if it has none."""
    if not features:
        return None
    end = max(feature.mm_position.end for feature in features)
    backend = make_backend("reference", device)
    places: list[int] = []
    rows: list[torch.Tensor] = []
    for feature in features:
        place = feature.mm_position
        is_embed = place.is_embed or (True,) * place.length
        places += [place.offset + n for n, has_one in enumerate(is_embed) if has_one]
        rows += encoder.encode(feature.modality, [feature.data or {}], backend)
    return GivenEmbeddings(places, torch.cat(rows), encoder.positions(features, end))


@torch.inference_mode()
def next_token_logits(
    model: DecoderModel, token_ids: list[int], given: GivenEmbeddings | None = None
) -> torch.Tensor:
    """float32 ``[vocab]``: one pass over all tokens, dense causal attention."""
    ids = torch.tensor(token_ids, device=next(model.parameters()).device)
    positions = torch.arange(len(token_ids), device=ids.device)
    inputs_embeds = None
    if given is not None:
        inputs_embeds = model.model.embed_tokens(ids)
        inputs_embeds[given.places] = given.rows
        if given.positions is not None:
            axes = given.positions.axes(0, len(token_ids))
            positions = torch.from_numpy(axes).to(ids.device)
    hidden = model(ids, positions, DenseAttention(), inputs_embeds)
    return model.compute_logits(hidden[-1:])[0]


def run(
    model: DecoderModel,
    request: Request,
    max_model_len: int,
    index: int = 0,
    grammar: StructuredOutputGrammar | None = None,
    encoder: MultiModalEncoder | None = None,
) -> OracleOutput:
    """Generate sample ``index`` of one request, alone. Its grammar is checked at every token.

    With pictures or sound in the prompt it needs the model's encoder.
    """
    given = None
    if encoder is not None:
        given = encode(encoder, request.mm_features, next(model.parameters()).device)
    params = request.sampling_params
    seed = request.seed + index
    prompt = request.prompt_token_ids
    output: list[int] = []
    margins: list[float] = []
    while True:
        logits = next_token_logits(model, prompt + output, given).tolist()
        allowed = None
        if grammar is not None:
            allowed = {i for i in range(len(logits)) if grammar.fork().accept_tokens([i])}
        token, margin = choose(logits, params, prompt, output, seed, allowed)
        if grammar is not None:
            grammar.accept_tokens([token])
        output.append(token)
        margins.append(margin)
        if token in request.eos_token_ids and not params.ignore_eos:
            return OracleOutput(output, margins, "stop", None)
        if token in params.stop_reason_ids:
            return OracleOutput(output, margins, "stop", token)
        if len(output) == params.max_tokens or len(prompt) + len(output) >= max_model_len:
            return OracleOutput(output, margins, "length", None)
