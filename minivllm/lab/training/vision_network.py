"""The picture model in training: transformers' LLaVA, a SigLIP eye before the embedded text model.

The eye cuts a picture in patches; what it makes of each becomes, through a projector of two layers,
the embedding of one token. (Liu et al. 2023, "Visual Instruction Tuning"; Zhai et al. 2023,
"Sigmoid Loss for Language Image Pre-Training")
"""

import json
import re
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import LlavaConfig, LlavaForConditionalGeneration

from minivllm.embedded import embedded_model_path
from minivllm.embedded.data.scene_questions import IMAGE
from minivllm.embedded.data.scenes import COLOURS, PLACES, SHAPES, WORDS
from minivllm.lab.training.export import load_network
from minivllm.lab.training.tokenization import load_tokenizer
from minivllm.utils.toml_data import load_toml

FILES = load_toml(__package__, "vision")
EYE: dict[str, int] = FILES["eye"]
GROUND_WEIGHT = 0.2
PATCHES = (EYE["image_size"] // EYE["patch_size"]) ** 2


def _texts(data: object) -> list[str]:
    """All strings of nested lists and tables."""
    if isinstance(data, dict):
        return [text for value in data.values() for text in _texts(value)]
    if isinstance(data, list):
        return [text for value in data for text in _texts(value)]
    return [data] if isinstance(data, str) else []


def picture_tokenizer() -> Tokenizer:
    """The text model's tokenizer, with a placeholder and with whole words to talk of scenes."""
    tokenizer = load_tokenizer(embedded_model_path())
    texts = [*COLOURS, *WORDS["greys"], *_texts(WORDS)]
    words = dict.fromkeys(re.findall(r"[A-Za-z]{2,}", " ".join(texts)))
    new = [word for word in words if len(tokenizer.encode(word).ids) > 1]
    tokenizer.add_special_tokens([IMAGE])
    tokenizer.add_tokens([AddedToken(word, single_word=True, normalized=False) for word in new])
    return tokenizer


def picture_config(tokenizer: Tokenizer) -> dict[str, object]:
    """The content of config.json: the eye's sizes, and the text model's with new tokens."""
    text = json.loads((embedded_model_path() / "config.json").read_text(encoding="utf-8"))
    return FILES["config"] | {
        "image_token_index": tokenizer.token_to_id(IMAGE),
        "image_seq_length": PATCHES,
        "vision_config": EYE,
        "text_config": text | {"vocab_size": tokenizer.get_vocab_size()},
    }


@torch.no_grad()
def make_picture_network(tokenizer: Tokenizer, seed: int) -> LlavaForConditionalGeneration:
    """A new eye and projector before the text model; a new word begins as the mean of its parts.

    The projector's vectors begin as large as the embeddings of words. Smaller ones drown in what
    the layers add to them: only colours came through.
    """
    torch.manual_seed(seed)
    config = LlavaConfig.from_dict(picture_config(tokenizer))
    network = LlavaForConditionalGeneration._from_config(config, attn_implementation="sdpa")
    for linear in (network.model.multi_modal_projector.linear_1,
                   network.model.multi_modal_projector.linear_2):  # fmt: skip
        nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
    source = embedded_model_path()
    weights = load_network(source).model.state_dict()
    rows = weights.pop("embed_tokens.weight")
    network.model.language_model.load_state_dict(weights, strict=False)
    embedding = network.model.language_model.embed_tokens.weight
    embedding[: len(rows)] = rows
    pieces = load_tokenizer(source)
    for index in range(len(rows), len(embedding)):
        embedding[index] = rows[pieces.encode(tokenizer.id_to_token(index)).ids].mean(0)
    return network


def load_picture_network(directory: Path) -> LlavaForConditionalGeneration:
    """The network of an exported directory, with its rounded weights, in float32."""
    return LlavaForConditionalGeneration.from_pretrained(directory, dtype=torch.float32)


class PatchLabels(nn.Module):
    """Linear heads on the eye, in training only: shape, colour and place of what a patch shows.

    Without the place the eye forgets where a patch is: what it is told apart by is not there.
    """

    def __init__(self) -> None:
        super().__init__()
        kinds = (len(SHAPES), len(COLOURS), len(PLACES))
        self.heads = nn.ModuleList(nn.Linear(EYE["hidden_size"], count + 1) for count in kinds)

    def loss(self, states: Tensor, labels: Tensor) -> Tensor:
        """Summed cross entropies; states [pictures, patches, width], labels [pictures, 3, patches].

        Most patches show the ground: it counts a fifth.
        """
        losses = []
        for head, wanted in zip(self.heads, labels.unbind(1), strict=True):
            weights = torch.ones(head.out_features)
            weights[0] = GROUND_WEIGHT
            found = head(states).flatten(0, 1).float()
            losses.append(cross_entropy(found, wanted.flatten(), weights))
        return torch.stack(losses).sum()
