"""Train the embedded model: ``python -m minivllm.embedded.training.train --output DIR``.

The plan (`curriculum.py`) is stretched over a budget of minutes or of steps. The run is saved
every few minutes and continues from there when it is started again with the same output. With
``--start-from`` it begins with the weights of another checkpoint, and follows a plan for that.
"""

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

from minivllm.embedded.data.corpus import Mixture, samples
from minivllm.embedded.training import curriculum, workers
from minivllm.embedded.training.batches import Batch, batches
from minivllm.embedded.training.encoding import Encoded, encode
from minivllm.embedded.training.exchange import Exchange
from minivllm.embedded.training.export import export
from minivllm.embedded.training.manifest import describe_training
from minivllm.embedded.training.network import Network, NetworkConfig
from minivllm.embedded.training.optimizer import Optimizer
from minivllm.embedded.training.pointers import LAYERS, pointer_loss, start_circuits
from minivllm.embedded.training.progress_sets import progress_report
from minivllm.embedded.training.start import take_over
from minivllm.embedded.training.tokenization import (
    load_tokenizer,
    train_tokenizer,
    with_cell_ends,
)

FULL = {"hidden_size": 256, "intermediate_size": 512, "layers": 5, "heads": 4}
SMALL = {"hidden_size": 128, "intermediate_size": 256, "layers": 4, "heads": 4}
VOCABULARY = 3072
TOKENIZER_SAMPLES = 6000
EXCHANGED_SHARE = 0.6


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
    """Endless training samples as tokens, with a part of their tokens exchanged."""
    rng, exchange = random.Random(f"{seed}-exchange"), Exchange(tokenizer)
    for sample in samples(mixture, seed):
        encoded = encode(tokenizer, sample)
        yield exchange.apply(rng, encoded) if rng.random() < EXCHANGED_SHARE else encoded


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
    workers.average_gradients(network.parameters())
    optimizer.step(rate)
    return {"loss": loss.item(), **shares}


def make_tokenizer(seed: int) -> Tokenizer:
    """Learn the tokenizer from the text of the last stage, which has everything in it."""
    source = samples(curriculum.MOSTLY_LARGE, f"{seed}-tokenizer")
    return train_tokenizer((next(source).text for _ in range(TOKENIZER_SAMPLES)), VOCABULARY)


def prepare_tokenizer(output: Path, seed: int, start_from: Path | None) -> None:
    """Put tokenizer.json into the directory of a run, unless it is there."""
    output.mkdir(parents=True, exist_ok=True)
    if not (output / "tokenizer.json").exists():
        made = with_cell_ends(load_tokenizer(start_from)) if start_from else make_tokenizer(seed)
        made.save(str(output / "tokenizer.json"))


class Run:
    """A training run in a directory: network, optimizer, progress, and where they are saved.

    The directory has the tokenizer already.
    """

    def __init__(
        self,
        output: Path,
        seed: int,
        config: dict,
        plan: curriculum.Plan = curriculum.FROM_NOTHING,
        start_from: Path | None = None,
        compile_layers: bool = False,
    ) -> None:
        self.output, self.seed, self.plan = output, seed, plan
        output.mkdir(parents=True, exist_ok=True)
        if not (output / "tokenizer.json").exists():
            made = (
                with_cell_ends(load_tokenizer(start_from)) if start_from else make_tokenizer(seed)
            )
            made.save(str(output / "tokenizer.json"))
        self.tokenizer = load_tokenizer(output)
        torch.manual_seed(seed)
        self.network = Network(NetworkConfig(self.tokenizer.get_vocab_size(), **config))
        if start_from:
            take_over(self.network, self.tokenizer, start_from)
        else:
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

    @property
    def checkpoint(self) -> Path:
        return self.output / "checkpoint"

    def save(self) -> None:
        """Save what is needed to continue, and export the model as it is."""
        if workers.number() != 0:
            return
        state = {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": vars(self.progress),
        }
        torch.save(state, self.state_path.with_suffix(".new"))
        self.state_path.with_suffix(".new").replace(self.state_path)
        export(self.network, self.tokenizer, self.checkpoint)
        config = self.network.config.as_dict()
        describe_training(self.checkpoint, self.seed, config, self.plan.stages, vars(self.progress))

    def report(self) -> None:
        """Say what the exported model can do."""
        if workers.number() == 0:
            print(progress_report(self.checkpoint), flush=True)

    def run(self, minutes: float, steps: int | None, save_every: float, log_every: int) -> float:
        """Train until the budget is used up; returns the mean loss of the last `log_every`."""
        progress, recent = self.progress, defaultdict(list)
        stage, source, last_save, mean_loss = None, None, time.monotonic(), float("nan")
        while (share := workers.agreed(progress.share(minutes, steps))) < 1.0:
            begin = time.monotonic()
            if self.plan.stage_at(share) is not stage:
                stage = self.plan.stage_at(share)
                seed = f"{self.seed}-{stage.name}-{progress.steps}"
                stream = encoded_stream(stage.mixture, self.tokenizer, seed)
                source = batches(stream, random.Random(seed), stage.batch_tokens)
            batch = next(source)
            values = train_step(
                self.network,
                self.optimizer,
                batch,
                curriculum.value_at(self.plan.rate, share),
                curriculum.value_at(self.plan.pointer_weight, share),
            )
            for name, value in values.items():
                recent[name].append(value)
            progress.steps += 1
            progress.tokens += batch.ids.numel() * workers.count()
            progress.seconds += time.monotonic() - begin
            done = progress.steps_per_stage.get(stage.name, 0)
            progress.steps_per_stage[stage.name] = done + 1
            if progress.steps % log_every == 0 and workers.number() == 0:
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
                self.report()
                last_save = time.monotonic()
        self.save()
        return mean_loss


def train(
    output: Path,
    seed: int,
    quick: bool,
    start_from: Path | None,
    compile_layers: bool,
    budget: tuple[float, int | None, float, int],
) -> None:
    """What each worker does; `budget` are the arguments of ``Run.run``."""
    torch.set_num_threads(1)
    config, plan = (SMALL, curriculum.QUICK) if quick else (FULL, curriculum.FROM_NOTHING)
    if start_from:
        plan = curriculum.CONTINUED
    run = Run(output, seed, config, plan, start_from, compile_layers)
    run.run(*budget)
    run.report()


def main(
    output: Annotated[Path, typer.Option(help="Directory of the run.")],
    minutes: Annotated[float, typer.Option(help="Training time in all.")] = 90.0,
    steps: Annotated[int | None, typer.Option(help="Budget in steps, instead of minutes.")] = None,
    start_from: Annotated[
        Path | None, typer.Option(help="Checkpoint directory whose weights to begin with.")
    ] = None,
    seed: int = 0,
    processes: Annotated[int, typer.Option(help="Workers, of one thread each.")] = 2,
    save_every: Annotated[float, typer.Option(help="Minutes between checkpoints.")] = 5.0,
    log_every: Annotated[int, typer.Option(help="Steps between log lines.")] = 50,
    quick: Annotated[bool, typer.Option("--quick", help="A small network, small tables.")] = False,
    compile_layers: Annotated[bool, typer.Option("--compile/--eager")] = True,
) -> None:
    """Train, or continue a training."""
    prepare_tokenizer(output, seed, start_from)
    budget = (minutes, steps, save_every, log_every)
    workers.in_workers(processes, train, output, seed, quick, start_from, compile_layers, budget)


if __name__ == "__main__":
    typer.run(main)
