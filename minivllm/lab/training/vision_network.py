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
from minivllm.embedded.data.scenes import COLOURS, SHAPES, WORDS
from minivllm.lab.training.export import load_network
from minivllm.lab.training.tokenization import load_tokenizer
from minivllm.utils.toml_data import load_toml

FILES = load_toml(__package__, "vision")
EYE: dict[str, int] = FILES["eye"]
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
    """A new eye and projector before the text model; a new word begins as the mean of its parts."""
    torch.manual_seed(seed)
    config = LlavaConfig.from_dict(picture_config(tokenizer))
    network = LlavaForConditionalGeneration._from_config(config, attn_implementation="sdpa")
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
    """Two linear heads on the eye, in training only: the shape and the colour of each patch."""

    def __init__(self) -> None:
        super().__init__()
        self.shape = nn.Linear(EYE["hidden_size"], len(SHAPES) + 1)
        self.colour = nn.Linear(EYE["hidden_size"], len(COLOURS) + 1)

    def loss(self, states: Tensor, shapes: Tensor, colours: Tensor) -> Tensor:
        """Summed cross entropies; states [pictures, patches, width], labels [pictures, patches]."""
        by_shape = cross_entropy(self.shape(states).flatten(0, 1).float(), shapes.flatten())
        by_colour = cross_entropy(self.colour(states).flatten(0, 1).float(), colours.flatten())
        return by_shape + by_colour
