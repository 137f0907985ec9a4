"""Learn to name a request's kind: ``python -m minivllm.lab.training.classifier DIR``.

The embedded model stays as it is. What is learnt is a head, one row of weights a kind, that reads
the state of the last token. The directory has the weights of the head alone: its index names the
embedded model's own file for all others.
"""

import json
import random
import shutil
import time
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from minivllm.embedded import embedded_model_path
from minivllm.embedded.data.requests import KINDS, request_of_kind
from minivllm.embedded.data.sentence_cases import unseen_requests
from minivllm.lab.training.embedder import last_state
from minivllm.lab.training.export import load_network
from minivllm.lab.training.manifest import file_hashes, update_manifest
from minivllm.lab.training.tokenization import load_closing_tokenizer

TEXTS = 4000
STEPS = 400
RATE = 5e-3
WEIGHT_DECAY = 0.3
HEAD_FILE = "score.safetensors"


def labelled(cases: list[tuple[str, str]]) -> tuple[Tensor, Tensor]:
    """The last states [texts, width] of requests, and their kinds' numbers [texts]."""
    directory = embedded_model_path()
    state = last_state(load_network(directory).model, load_closing_tokenizer(directory))
    texts, kinds = zip(*cases, strict=True)
    return state(list(texts)), torch.tensor([KINDS.index(kind) for kind in kinds])


def train_head(states: Tensor, kinds: Tensor, steps: int, seed: int = 0) -> nn.Linear:
    """Logistic regression; the weights come out rounded to bfloat16."""
    torch.manual_seed(seed)
    head = nn.Linear(states.shape[1], len(KINDS), bias=False)
    optimizer = torch.optim.AdamW(head.parameters(), lr=RATE, weight_decay=WEIGHT_DECAY)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(head(states), kinds).backward()
        optimizer.step()
    head.weight.data = head.weight.data.to(torch.bfloat16).float()
    return head


def accuracy(head: nn.Linear, states: Tensor, kinds: Tensor) -> float:
    return (head(states).argmax(-1) == kinds).float().mean().item()


def save_classifier(head: nn.Linear, directory: Path, model: str = "../checkpoint") -> None:
    """Write the head, and an index that names the file of `model`, a path from the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    source = embedded_model_path()
    save_file({"score.weight": head.weight.detach().to(torch.bfloat16)}, directory / HEAD_FILE,
              metadata={"format": "pt"})  # fmt: skip
    weights = load_file(source / "model.safetensors")
    of_model = dict.fromkeys(weights, f"{model}/model.safetensors")
    size = sum(tensor.nbytes for tensor in weights.values()) + 2 * head.weight.numel()
    index = {
        "metadata": {"total_size": size},
        "weight_map": {**of_model, "score.weight": HEAD_FILE},
    }
    (directory / "model.safetensors.index.json").write_text(
        json.dumps(index, indent=2) + "\n", "utf-8"
    )
    config = json.loads((source / "config.json").read_text(encoding="utf-8")) | {
        "architectures": ["Qwen2ForSequenceClassification"],
        "id2label": dict(enumerate(KINDS)),
        "label2id": {kind: number for number, kind in enumerate(KINDS)},
        "pad_token_id": 0,  # transformers finds the last token of a padded batch by it
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    load_closing_tokenizer(source).save(str(directory / "tokenizer.json"))
    shutil.copy(source / "tokenizer_config.json", directory)


def main(
    directory: Annotated[Path, typer.Argument(help="Where the classifier is written.")],
    steps: Annotated[int, typer.Option(help="Updates.")] = STEPS,
    seed: Annotated[int, typer.Option(help="Of the text and the start values.")] = 0,
) -> None:
    """Learn the head, and measure it on requests in words that it has not seen."""
    rng = random.Random(seed)
    begin = time.process_time()
    drawn = [(request_of_kind(rng, kind), kind) for kind in rng.choices(KINDS, k=TEXTS)]
    states, kinds = labelled(drawn)
    head = train_head(states, kinds, steps, seed=seed)
    seconds = round(time.process_time() - begin)
    save_classifier(head, directory)
    scores = {
        "seen wordings": round(accuracy(head, states, kinds), 4),
        "unseen wordings": round(accuracy(head, *labelled(unseen_requests(KINDS))), 4),
    }
    print(f"right: {scores}, {seconds} CPU seconds")
    update_manifest(
        directory,
        seed=seed,
        training={"texts": TEXTS, "steps": steps, "CPU seconds": seconds},
        scores=scores,
        files=file_hashes(directory),
    )


if __name__ == "__main__":
    typer.run(main)
