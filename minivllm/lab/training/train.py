"""Train the embedded model: ``python -m minivllm.lab.training.train --output DIR``.

The plan (`curriculum.py`) is stretched over a budget of minutes or of steps. The run is saved
every few minutes, and the same command goes on from there: it may be stopped at any time.
"""

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from tokenizers import Tokenizer
from transformers import Qwen2ForCausalLM

from minivllm.embedded.data.corpus import samples
from minivllm.lab.training import curriculum, workers
from minivllm.lab.training.batches import Batch, batches, encoded_stream
from minivllm.lab.training.export import export
from minivllm.lab.training.manifest import describe_training
from minivllm.lab.training.network import make_network
from minivllm.lab.training.optimizer import Optimizer
from minivllm.lab.training.pointers import pointer_loss, start_circuits
from minivllm.lab.training.progress import progress_report
from minivllm.lab.training.tokenization import load_tokenizer, train_tokenizer

FULL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 5,
        "num_attention_heads": 4}  # fmt: skip
SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
         "num_attention_heads": 4}  # fmt: skip
VOCABULARY = 3072
TOKENIZER_SAMPLES = 6000


@dataclass
class Progress:
    """Progress of a run; saved with the weights."""

    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    steps_per_stage: dict[str, int] = field(default_factory=dict)

    def share(self, minutes: float, steps: int | None) -> float:
        """Used share of the budget, from 0 to 1."""
        return self.steps / steps if steps else self.seconds / (60 * minutes)


def language_loss(network: Qwen2ForCausalLM, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy of the learnt tokens, by weight; logits only where they are needed."""
    weights = batch.weights[:, 1:]
    learnt = weights > 0
    logits = network.lm_head(hidden[:, :-1][learnt]).float()
    losses = F.cross_entropy(logits, batch.ids[:, 1:][learnt], reduction="none")
    return (losses * weights[learnt]).sum() / weights[learnt].sum()


def make_tokenizer(seed: int) -> Tokenizer:
    """Learn the tokenizer from the text of the last stage, which has everything in it."""
    source = samples(curriculum.FULL_PLAN.stages[-1].mixture, f"{seed}-tokenizer")
    return train_tokenizer((next(source).text for _ in range(TOKENIZER_SAMPLES)), VOCABULARY)


def begin(output: Path, settings: dict[str, object], make: Callable[[], Tokenizer]) -> None:
    """Begin a run in a directory with its tokenizer, or see that the run there is this one.

    Raises:
        typer.BadParameter: if it was begun with other settings: another seed, another size.
    """
    kept = output / "settings.json"
    if not kept.exists():
        output.mkdir(parents=True, exist_ok=True)
        make().save(str(output / "tokenizer.json"))
        kept.write_text(json.dumps(settings), encoding="utf-8")
    for name, begun in json.loads(kept.read_text(encoding="utf-8")).items():
        if settings.get(name) != begun:
            got = settings.get(name)
            message = f"must be {begun!r}, as the run in {output} was begun, got {got!r}"
            raise typer.BadParameter(message, param_hint=f"--{name}")


class Run:
    """A training run in a directory: network, optimizer, progress, and where they are saved.

    The directory has the tokenizer already.
    """

    def __init__(
        self,
        output: Path,
        seed: int,
        sizes: dict[str, int],
        plan: curriculum.Plan,
        compile_layers: bool = False,
    ) -> None:
        self.output = output
        self.seed = seed
        self.plan = plan
        self.state_path = output / "state.pt"
        self.checkpoint = output / "checkpoint"
        self.tokenizer = load_tokenizer(output)
        self.network = make_network(self.tokenizer.get_vocab_size(), sizes, seed)
        self.set_start_values()
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
        self.decoder = workers.averaging(self.network.model)

    def set_start_values(self) -> None:
        """Set start values beside `make_network`'s own."""
        start_circuits(self.network)

    def loss(self, hidden: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the loss, and values for the log; `hidden` is [batch, length, width]."""
        return language_loss(self.network, hidden, batch), {}

    def step(self, batch: Batch, rate: float, pointer_weight: float) -> dict[str, float]:
        """One update; returns the loss and, per kind of pointer, the attention on the right keys.

        The decoder is the network without its head, as `workers.averaging` gives it back.
        """
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.decoder(batch.ids, use_cache=False).last_hidden_state
            loss, values = self.loss(hidden, batch)
        total = loss
        shares = {}
        if batch.pointers:
            guidance, shares = pointer_loss(self.network, batch.pointers)
            total = loss + pointer_weight * guidance
        total.backward()
        self.optimizer.step(rate)
        return {"loss": loss.item(), **values, **shares}

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
        describe_training(
            self.checkpoint, self.seed, self.plan.stages, progress=vars(self.progress)
        )

    def report(self) -> None:
        """Log the exact-match rates of the exported model."""
        if workers.number() == 0:
            print(progress_report(self.checkpoint), flush=True)

    def run(self, minutes: float, steps: int | None, save_every: float, log_every: int) -> float:
        """Train until the budget is used up; returns the mean loss of the last `log_every`."""
        progress = self.progress
        recent = defaultdict(list)
        stage = None
        source = None
        last_save = time.monotonic()
        mean_loss = float("nan")
        while (share := workers.agreed(progress.share(minutes, steps))) < 1.0:
            begin = time.monotonic()
            if self.plan.stage_at(share) is not stage:
                stage = self.plan.stage_at(share)
                seed = f"{self.seed}-{stage.name}-{progress.steps}"
                stream = encoded_stream(stage.mixture, self.tokenizer, seed)
                source = batches(stream, random.Random(seed), stage.batch_tokens)
            batch = next(source)
            values = self.step(
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
                    f"loss {mean_loss:.3f} | {shown}",
                    flush=True,
                )
                recent.clear()
            if time.monotonic() - last_save > 60 * save_every:
                self.save()
                self.report()
                last_save = time.monotonic()
        self.save()
        return mean_loss


def train(make_run: Callable[[], Run], budget: tuple[float, int | None, float, int]) -> None:
    """Train, in each worker; `budget` are the arguments of ``Run.run``."""
    torch.set_num_threads(1)
    run = make_run()
    minutes, steps, save_every, log_every = budget
    run.run(minutes, steps, save_every, log_every=log_every)
    run.report()


Output = Annotated[Path, typer.Option(help="Directory of the run: new, or one to go on with.")]
Minutes = Annotated[float, typer.Option(help="Training time in all sittings.")]
Steps = Annotated[int | None, typer.Option(help="Budget in steps, instead of minutes.")]
Processes = Annotated[int, typer.Option(help="Workers, of one thread each.")]
SaveEvery = Annotated[float, typer.Option(help="Minutes between checkpoints.")]
LogEvery = Annotated[int, typer.Option(help="Steps between log lines.")]
CompileLayers = Annotated[
    bool, typer.Option("--compile/--eager", help="Compile the layers with torch.compile.")
]


def main(
    output: Output,
    minutes: Minutes = 90.0,
    steps: Steps = None,
    seed: Annotated[int, typer.Option(help="Of text, tokenizer and start values.")] = 0,
    processes: Processes = 2,
    save_every: SaveEvery = 5.0,
    log_every: LogEvery = 50,
    quick: Annotated[bool, typer.Option("--quick", help="A small network, small tables.")] = False,
    compile_layers: CompileLayers = True,
) -> None:
    """Train a model from nothing, or go on where the run in the directory stopped.

    The Hugging Face directory of the model as it is lies in OUTPUT/checkpoint.
    """
    begin(output, {"seed": seed, "quick": quick}, partial(make_tokenizer, seed))
    sizes, plan = (SMALL, curriculum.QUICK_PLAN) if quick else (FULL, curriculum.FULL_PLAN)
    make_run = partial(Run, output, seed, sizes=sizes, plan=plan, compile_layers=compile_layers)
    workers.in_workers(processes, train, make_run, (minutes, steps, save_every, log_every))


if __name__ == "__main__":
    typer.run(main)
