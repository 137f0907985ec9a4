"""Train an adapter of the embedded model: ``python -m minivllm.lab.training.lora NAME DIR``.

All weights of the model stay as they are. Beside each linear layer two thin matrices are learnt,
whose product is a change of its weight of low rank. (Hu et al. 2021, "LoRA: Low-Rank Adaptation
of Large Language Models")
"""

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import Qwen2ForCausalLM

from minivllm.embedded import embedded_model_path
from minivllm.embedded.data.adapter_cases import unseen_samples
from minivllm.embedded.data.pirate import pirate_talk
from minivllm.embedded.data.sample import Sample
from minivllm.embedded.data.sql import sql_query
from minivllm.lab.training.batches import Encoded, batches, encode
from minivllm.lab.training.export import load_network
from minivllm.lab.training.manifest import file_hashes, update_manifest
from minivllm.lab.training.progress import exact_rates, rate, summary
from minivllm.lab.training.tokenization import load_tokenizer
from minivllm.lab.training.train import language_loss

RANK = 8
ALPHA = 16
RATE = 4e-3
WARM_UP = 20
BATCH_TOKENS = 2048
LOG_EVERY = 50
Draw = Callable[[random.Random], Sample]
PLANS: dict[str, tuple[Draw, int]] = {"pirate": (pirate_talk, 150), "sql-lora": (sql_query, 2400)}
"""By an adapter's name: how a sample of its training text is drawn, and the number of steps."""


class LoRALinear(nn.Module):
    """A frozen linear layer and a change of rank r beside it: ``y = W x + b + s B (A x)``.

    A is [r, inputs], B is [outputs, r], and s is alpha / r.
    """

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.scale = ALPHA / RANK
        self.lora_A = nn.Linear(base.in_features, RANK, bias=False)
        self.lora_B = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)  # at first there is no change

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * self.lora_B(self.lora_A(x))


def add_adapter(network: Qwen2ForCausalLM, seed: int) -> None:
    """Freeze the network, and put a change beside each linear layer of its decoder."""
    torch.manual_seed(seed)
    network.requires_grad_(False)
    for layer in network.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name, linear in list(block.named_children()):
                if isinstance(linear, nn.Linear):
                    setattr(block, name, LoRALinear(linear))


def learnt_weights(network: Qwen2ForCausalLM) -> dict[str, nn.Parameter]:
    """The adapter's weights, by their names in the network."""
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def encoded_samples(draw: Draw, seed: int) -> Iterator[Encoded]:
    """Endless training samples as tokens; attention is not supervised here."""
    tokenizer = load_tokenizer(embedded_model_path())
    rng = random.Random(seed)
    while True:
        encoded = encode(tokenizer, draw(rng))
        encoded.pointers.clear()
        yield encoded


def train_adapter(network: Qwen2ForCausalLM, draw: Draw, steps: int, seed: int = 0) -> list[float]:
    """Add an adapter to the network and train it on drawn samples; returns each step's loss.

    The rate rises over the first steps and falls to zero along a cosine.
    """
    add_adapter(network, seed)
    learnt = list(learnt_weights(network).values())
    optimizer = torch.optim.AdamW(learnt, lr=RATE, betas=(0.9, 0.98), weight_decay=0.0)
    source = batches(encoded_samples(draw, seed), random.Random(seed), BATCH_TOKENS)
    losses: list[float] = []
    for step in range(steps):
        batch = next(source)
        falling = 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = RATE * falling * min(1.0, (step + 1) / WARM_UP)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = network.model(batch.ids, use_cache=False).last_hidden_state
            loss = language_loss(network, hidden, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if len(losses) % LOG_EVERY == 0:
            print(f"step {len(losses)} of {steps}, loss {mean_losses(losses)[-1]}", flush=True)
    return losses


def mean_losses(losses: list[float], count: int = LOG_EVERY) -> list[float]:
    """The mean of each `count` losses in a row."""
    starts = range(0, len(losses), count)
    return [round(sum(losses[i : i + count]) / len(losses[i : i + count]), 4) for i in starts]


def save_adapter(network: Qwen2ForCausalLM, directory: Path) -> None:
    """Write a trained adapter as PEFT does, in bfloat16; later steps compute with what is written.

    PEFT wraps the network twice, hence the names.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, weight in learnt_weights(network).items():
        rounded = weight.detach().to(torch.bfloat16)
        weight.data.copy_(rounded)
        tensors[f"base_model.model.{name}"] = rounded.contiguous()
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "minivllm/embedded",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.split(".")[-3] for name in tensors}),
        "inference_mode": True,
    }
    path = directory / "adapter_config.json"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main(
    name: Annotated[str, typer.Argument(help=" or ".join(PLANS))],
    directory: Annotated[Path, typer.Argument(help="Where the adapter is written.")],
    steps: Annotated[int | None, typer.Option(help="Updates, instead of the usual number.")] = None,
    seed: Annotated[int, typer.Option(help="Of the text and the start values.")] = 0,
) -> None:
    """Train an adapter, and measure it on cases that it has not seen."""
    if name not in PLANS:
        raise typer.BadParameter(f"must be one of {', '.join(PLANS)}, got {name!r}")
    draw, usual_steps = PLANS[name]
    steps = steps or usual_steps
    begin = time.monotonic()
    network = load_network(embedded_model_path())
    tokenizer = load_tokenizer(embedded_model_path())
    losses = train_adapter(network, draw, steps, seed=seed)
    seconds = round(time.monotonic() - begin)
    save_adapter(network, directory)
    counts = exact_rates(network, (encode(tokenizer, s) for s in unseen_samples(name)))
    print(f"exact on unseen cases: {summary(counts)}, {seconds} seconds")
    scores = {label: round(right / total, 4) for label, (right, total) in counts.items()}
    update_manifest(
        directory,
        seed=seed,
        training={"steps": steps, "seconds": seconds, "losses": mean_losses(losses)},
        scores={"exact": round(rate(counts), 4), **scores},
        files=file_hashes(directory),
    )


if __name__ == "__main__":
    typer.run(main)
