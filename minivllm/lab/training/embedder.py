"""Tune an embedder from the embedded model: ``python -m minivllm.lab.training.embedder DIR``.

Two texts of one meaning are to have near vectors, and all other texts of the batch far ones. (van
den Oord et al. 2018, "Representation Learning with Contrastive Predictive Coding", InfoNCE) A
text's vector is the state of its last token. It is learnt at several lengths at once, so that its
first numbers are a vector, too. (Kusupati et al. 2022, "Matryoshka Representation Learning")
"""

import json
import math
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import Qwen2Model

from minivllm.embedded import embedded_model_path
from minivllm.embedded.data.sentence_cases import Search, searches
from minivllm.embedded.data.sentences import Pair, drawn_pairs
from minivllm.lab.training.export import load_network
from minivllm.lab.training.lora import mean_losses
from minivllm.lab.training.manifest import file_hashes, update_manifest
from minivllm.lab.training.tokenization import load_closing_tokenizer, load_tokenizer

STEPS = 300
RATE = 5e-4
WARM_UP = 20
GROUPS = 32
TOGETHER = 32
"""Texts in one pass."""
TEMPERATURE = 0.05
DIMENSIONS = (32, 64, 128, 256)
"""Lengths at which a vector is learnt."""
LOG_EVERY = 10
Embed = Callable[[list[str]], Tensor]


def states(
    network: Qwen2Model, tokenizer: Tokenizer, texts: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """The last token's state, and the mean of all states, of each text: [texts, width] both.

    Texts of about the same length go together, so that there is little padding.
    """
    ids = [torch.tensor(encoding.ids) for encoding in tokenizer.encode_batch(list(texts))]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    last = []
    mean = []
    for start in range(0, len(order), TOGETHER):
        some = [ids[i] for i in order[start : start + TOGETHER]]
        lengths = torch.tensor([len(row) for row in some])
        padded = nn.utils.rnn.pad_sequence(some, batch_first=True)  # no token looks behind it
        hidden = network(padded, use_cache=False).last_hidden_state
        last.append(hidden[torch.arange(len(some)), lengths - 1])
        real = (torch.arange(padded.shape[1]) < lengths[:, None])[..., None]
        mean.append((hidden * real).sum(1) / lengths[:, None])
    back = torch.tensor(order).argsort()
    return torch.cat(last)[back], torch.cat(mean)[back]


def info_nce(first: Tensor, second: Tensor, same: Tensor) -> Tensor:
    """Cross entropy of finding row i of the one in row i of the other, both ways: a number.

    ``first`` and ``second`` are [pairs, width]; ``same`` [pairs, pairs] says which two pairs have
    one meaning: they are not held against each other.
    """
    scores = F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T / TEMPERATURE
    scores = scores.masked_fill(same & ~torch.eye(len(same), dtype=torch.bool), -math.inf)
    wanted = torch.arange(len(scores))
    return (F.cross_entropy(scores, wanted) + F.cross_entropy(scores.T, wanted)) / 2


def pairs_loss(network: Qwen2Model, tokenizer: Tokenizer, pairs: list[Pair]) -> Tensor:
    """The mean of the loss over all lengths of a vector."""
    texts = [pair.first for pair in pairs] + [pair.second for pair in pairs]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        last, _ = states(network, tokenizer, texts)
    first, second = last.float().chunk(2)
    number = {pair.meaning: i for i, pair in enumerate(pairs)}
    meanings = torch.tensor([number[pair.meaning] for pair in pairs])
    same = meanings[:, None] == meanings
    return torch.stack([info_nce(first[:, :n], second[:, :n], same) for n in DIMENSIONS]).mean()


def tune(network: Qwen2Model, tokenizer: Tokenizer, steps: int, seed: int = 0) -> list[float]:
    """Train all weights; the rate rises over the first steps, then falls along a cosine to zero.

    Returns each step's loss.
    """
    rng = random.Random(seed)
    parameters = list(network.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    losses: list[float] = []
    for step in range(steps):
        falling = 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = RATE * falling * min(1.0, (step + 1) / WARM_UP)
        loss = pairs_loss(network, tokenizer, drawn_pairs(rng, GROUPS))
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if len(losses) % LOG_EVERY == 0:
            mean = mean_losses(losses, LOG_EVERY)[-1]
            print(f"step {len(losses)} of {steps}, loss {mean}", flush=True)
    return losses


def found(embed: Embed, cases: list[Search]) -> float:
    """Share of the cases in which the right candidate has the nearest vector."""
    right = 0
    for case in cases:
        vectors = F.normalize(embed([case.text, *case.candidates]), dim=-1)
        right += int((vectors[1:] @ vectors[0]).argmax() == 0)
    return right / len(cases)


def bag_of_words(tokenizer: Tokenizer) -> Embed:
    """A vector without a model: how often each token is in the text."""

    def embed(texts: list[str]) -> Tensor:
        rows = [torch.tensor(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
        size = tokenizer.get_vocab_size()
        return torch.stack([torch.bincount(row, minlength=size) for row in rows]).float()

    return embed


def last_state(network: Qwen2Model, tokenizer: Tokenizer) -> Embed:
    return torch.no_grad()(lambda texts: states(network, tokenizer, texts)[0])


def mean_state(network: Qwen2Model, tokenizer: Tokenizer) -> Embed:
    return torch.no_grad()(lambda texts: states(network, tokenizer, texts)[1])


def _write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def save_embedder(network: Qwen2Model, tokenizer: Tokenizer, directory: Path) -> None:
    """Write a directory of Sentence Transformers, in bfloat16; later steps compute with that."""
    source = embedded_model_path()
    tensors = {}
    directory.mkdir(parents=True, exist_ok=True)
    for name, weight in network.named_parameters():
        tensors[name] = weight.detach().to(torch.bfloat16).contiguous()
        weight.data.copy_(tensors[name])
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(directory / "tokenizer.json"))
    for name, own in (
        ("tokenizer_config.json", {}),
        (
            "config.json",
            {
                "architectures": ["Qwen2Model"],
                "is_matryoshka": True,
                "matryoshka_dimensions": list(DIMENSIONS),
            },
        ),
    ):
        _write_json(directory / name, json.loads((source / name).read_text(encoding="utf-8")) | own)
    parts = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [
        {"idx": number, "name": str(number), "path": path,
         "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(parts)
    ]  # fmt: skip
    _write_json(directory / "modules.json", modules)
    pooling = {
        "word_embedding_dimension": network.config.hidden_size,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": False,
        "pooling_mode_lasttoken": True,
    }
    _write_json(directory / "1_Pooling" / "config.json", pooling)


def main(
    directory: Annotated[Path, typer.Argument(help="Where the embedder is written.")],
    steps: Annotated[int, typer.Option(help="Updates.")] = STEPS,
    seed: Annotated[int, typer.Option(help="Of the text.")] = 0,
) -> None:
    """Tune an embedder, and measure it beside the untuned model and the counting of words."""
    source = embedded_model_path()
    network = load_network(source).model
    tokenizer = load_closing_tokenizer(source)
    begin = time.monotonic()
    cpu = time.process_time()
    losses = tune(network, tokenizer, steps, seed=seed)
    seconds = {
        "seconds": round(time.monotonic() - begin),
        "CPU seconds": round(time.process_time() - cpu),
    }
    save_embedder(network, tokenizer, directory)
    untuned = load_network(source).model
    plain = load_tokenizer(source)
    vectors = {
        "embedder": last_state(network, tokenizer),
        "counted tokens": bag_of_words(plain),
        "text model, last state": last_state(untuned, plain),
        "text model, mean state": mean_state(untuned, plain),
    }
    scores: dict[str, dict[str, float]] = {}
    for name, embed in vectors.items():
        scores[name] = {kind: round(found(embed, some), 4) for kind, some in searches().items()}
        print(f"{name}: {scores[name]}", flush=True)
    update_manifest(
        directory,
        seed=seed,
        training={"steps": steps, **seconds, "losses": mean_losses(losses, LOG_EVERY)},
        scores=scores,
        files=file_hashes(directory),
    )


if __name__ == "__main__":
    typer.run(main)
