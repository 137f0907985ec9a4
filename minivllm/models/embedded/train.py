"""Train the embedded model: ``python -m minivllm.models.embedded.train --output DIR``.

The plan (`curriculum.py`) is stretched over a budget of minutes or of steps. The run is saved
every few minutes and continues from there when it is started again with the same output.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads sleep; others share the cores

import random
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from tokenizers import Tokenizer

from minivllm.models.embedded import curriculum
from minivllm.models.embedded.batches import Batch, batches
from minivllm.models.embedded.corpus import Mixture, samples
from minivllm.models.embedded.encoding import Encoded, encode
from minivllm.models.embedded.export import export
from minivllm.models.embedded.manifest import describe_training
from minivllm.models.embedded.network import Network, NetworkConfig
from minivllm.models.embedded.optimizer import Optimizer
from minivllm.models.embedded.pointers import LAYERS, pointer_loss, start_circuits
from minivllm.models.embedded.progress_sets import progress_report
from minivllm.models.embedded.tokenization import load_tokenizer, train_tokenizer

FULL = {"hidden_size": 256, "intermediate_size": 512, "layers": 5, "heads": 4}
SMALL = {"hidden_size": 128, "intermediate_size": 256, "layers": 4, "heads": 4}
VOCABULARY = 3072
TOKENIZER_SAMPLES = 6000


@dataclass
class Progress:
    """How far a run is; saved with the weights."""

    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    steps_per_stage: dict[str, int] = field(default_factory=dict)

    def share(self, minutes: float, steps: int | None) -> float:
        """How much of the budget is used, from 0 to 1."""
        return self.steps / steps if steps else self.seconds / (60 * minutes)


def encoded_stream(mixture: Mixture, tokenizer: Tokenizer, seed: str) -> Iterator[Encoded]:
    """Endless training samples as tokens."""
    for sample in samples(mixture, seed):
        yield encode(tokenizer, sample)


def language_loss(network: Network, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy of the learnt tokens, by weight; logits only where they are needed."""
    weights = batch.weights[:, 1:]
    learnt = weights > 0
    logits = network.logits(hidden[:, :-1][learnt]).float()
    losses = F.cross_entropy(logits, batch.ids[:, 1:][learnt], reduction="none")
    return (losses * weights[learnt]).sum() / weights[learnt].sum()


def train_step(
    network: Network, optimizer: Optimizer, batch: Batch, rate: float, pointer_weight: float
) -> dict[str, float]:
    """One update; returns the loss and, per kind of pointer, the attention on the right keys."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden, kept = network(batch.ids, LAYERS)
        loss = language_loss(network, hidden, batch)
    total, shares = loss, {}
    if batch.pointers:
        guidance, shares = pointer_loss(kept, batch.pointers)
        total = loss + pointer_weight * guidance
    total.backward()
    optimizer.step(rate)
    return {"loss": loss.item(), **shares}


def make_tokenizer(seed: int) -> Tokenizer:
    """Learn the tokenizer from the text of the last stage, which has everything in it."""
    source = samples(curriculum.STAGES[-1].mixture, f"{seed}-tokenizer")
    return train_tokenizer((next(source).text for _ in range(TOKENIZER_SAMPLES)), VOCABULARY)


class Run:
    """A training run in a directory: network, optimizer, progress, and where they are saved."""

    def __init__(
        self,
        output: Path,
        seed: int,
        config: dict,
        stages: tuple[curriculum.Stage, ...] = curriculum.STAGES,
        compile_layers: bool = False,
    ) -> None:
        self.output, self.seed, self.stages = output, seed, stages
        output.mkdir(parents=True, exist_ok=True)
        if not (output / "tokenizer.json").exists():
            make_tokenizer(seed).save(str(output / "tokenizer.json"))
        self.tokenizer = load_tokenizer(output)
        torch.manual_seed(seed)
        self.network = Network(NetworkConfig(self.tokenizer.get_vocab_size(), **config))
        start_circuits(self.network)
        self.optimizer = Optimizer(self.network)
        self.progress = Progress()
        if self.state_path.exists():
            state = torch.load(self.state_path)
            self.network.load_state_dict(state["network"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.progress = Progress(**state["progress"])
        if compile_layers:
            for layer in self.network.model.layers:
                layer.compile(dynamic=True)

    @property
    def state_path(self) -> Path:
        return self.output / "state.pt"

    def save(self) -> None:
        """Save what is needed to continue, and export the model as it is."""
        state = {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": vars(self.progress),
        }
        torch.save(state, self.state_path.with_suffix(".new"))
        self.state_path.with_suffix(".new").replace(self.state_path)
        checkpoint = self.output / "checkpoint"
        export(self.network, self.tokenizer, checkpoint)
        config = self.network.config.as_dict()
        describe_training(checkpoint, self.seed, config, vars(self.progress))

    def run(self, minutes: float, steps: int | None, save_every: float, log_every: int) -> float:
        """Train until the budget is used up; returns the mean loss of the last `log_every`."""
        progress, recent = self.progress, defaultdict(list)
        stage, source, last_save, mean_loss = None, None, time.monotonic(), float("nan")
        while (share := progress.share(minutes, steps)) < 1.0:
            begin = time.monotonic()
            if curriculum.stage_at(share, self.stages) is not stage:
                stage = curriculum.stage_at(share, self.stages)
                seed = f"{self.seed}-{stage.name}-{progress.steps}"
                stream = encoded_stream(stage.mixture, self.tokenizer, seed)
                source = batches(stream, random.Random(seed), stage.batch_tokens)
            batch = next(source)
            values = train_step(
                self.network,
                self.optimizer,
                batch,
                curriculum.rate_at(share),
                curriculum.pointer_weight_at(share),
            )
            for name, value in values.items():
                recent[name].append(value)
            progress.steps += 1
            progress.tokens += batch.ids.numel()
            progress.seconds += time.monotonic() - begin
            done = progress.steps_per_stage.get(stage.name, 0)
            progress.steps_per_stage[stage.name] = done + 1
            if progress.steps % log_every == 0:
                means = {name: sum(values) / len(values) for name, values in recent.items()}
                mean_loss = means.pop("loss")
                shown = " ".join(f"{name} {value:.2f}" for name, value in means.items())
                print(
                    f"{time.strftime('%H:%M:%S')} [{stage.name}] step {progress.steps} "
                    f"({share:.0%}, {progress.tokens / progress.seconds:.0f} tokens/s) "
                    f"loss {mean_loss:.3f} | attention: {shown}",
                    flush=True,
                )
                recent.clear()
            if time.monotonic() - last_save > 60 * save_every:
                self.save()
                print(progress_report(self.output / "checkpoint"), flush=True)
                last_save = time.monotonic()
        self.save()
        return mean_loss


def main(
    output: Annotated[Path, typer.Option(help="Directory of the run.")],
    minutes: Annotated[float, typer.Option(help="Training time in all.")] = 90.0,
    steps: Annotated[int | None, typer.Option(help="Budget in steps, instead of minutes.")] = None,
    seed: int = 0,
    threads: int = 2,
    save_every: Annotated[float, typer.Option(help="Minutes between checkpoints.")] = 5.0,
    log_every: Annotated[int, typer.Option(help="Steps between log lines.")] = 50,
    quick: Annotated[bool, typer.Option("--quick", help="A small network, small tables.")] = False,
    compile_layers: Annotated[bool, typer.Option("--compile/--eager")] = True,
) -> None:
    """Train, or continue a training."""
    torch.set_num_threads(threads)
    config, stages = (SMALL, curriculum.QUICK) if quick else (FULL, curriculum.STAGES)
    run = Run(output, seed, config, stages, compile_layers)
    run.run(minutes, steps, save_every, log_every)
    print(progress_report(output / "checkpoint"))


if __name__ == "__main__":
    typer.run(main)
