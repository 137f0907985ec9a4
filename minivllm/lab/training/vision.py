"""Train the picture model: ``python -m minivllm.lab.training.vision --output DIR``.

First the eye alone learns which shape each patch of a scene shows, in which colour and at which
place: the labels are known, since the scenes are drawn. Then eye, projector and the text model
learn together to answer questions about scenes, and a third of all they read is the text model's
own training text: without it the model forgets everything that it could.
"""

import platform
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from minivllm.embedded.data.scenes import Scene
from minivllm.lab.training import curriculum, workers
from minivllm.lab.training.batches import Batch, Encoded, batches, encoded_stream
from minivllm.lab.training.manifest import data_hashes, file_hashes, update_manifest
from minivllm.lab.training.optimizer import Optimizer
from minivllm.lab.training.tokenization import load_tokenizer
from minivllm.lab.training.train import (
    LogEvery,
    Minutes,
    Output,
    Processes,
    Progress,
    SaveEvery,
    Steps,
    begin,
    language_loss,
)
from minivllm.lab.training.vision_batches import (
    PictureBatch,
    Rows,
    drawn_scene,
    fingerprint,
    labels,
    picture_batches,
    pixels,
)
from minivllm.lab.training.vision_export import export
from minivllm.lab.training.vision_network import (
    PatchLabels,
    make_picture_network,
    picture_tokenizer,
)
from minivllm.lab.training.vision_progress import report

PICTURES = 96
"""Pictures of a step of the eye alone, over all workers."""
PICTURE_TOKENS = 4096
"""Tokens of a step about pictures, over all workers: twice as many as of the text replayed."""
LABEL_WEIGHT = 0.1
TEXT_WEIGHT = 0.5
EYE = curriculum.VISION_PLAN.stages[0]


@dataclass
class VisionProgress(Progress):
    """Progress of a run; ``cpu_seconds`` are those of all workers."""

    cpu_seconds: float = 0.0


def text_batches(stage: curriculum.Stage, run: "VisionRun") -> Iterator[Batch]:
    """The text model's training text; attention is not supervised here."""

    def without_pointers() -> Iterator[Encoded]:
        for encoded in encoded_stream(stage.mixture, run.tokenizer, seed):
            encoded.pointers.clear()
            yield encoded

    seed = f"{run.seed}-{stage.name}-{run.progress.steps}"
    return batches(without_pointers(), random.Random(seed), stage.batch_tokens)


def describe(directory: Path, seed: int, progress: VisionProgress) -> None:
    """Write into the manifest how the checkpoint beside it was made."""
    update_manifest(
        directory,
        seed=seed,
        data={
            "scenes and questions": fingerprint(seed),
            **data_hashes(seed, curriculum.VISION_PLAN.stages[1:]),
        },
        training={
            "steps": progress.steps,
            "steps per stage": progress.steps_per_stage,
            "minutes": round(progress.seconds / 60, 1),
            "CPU minutes": round(progress.cpu_seconds / 60, 1),
        },
        versions={
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "pillow", "numpy")},
        },
        files=file_hashes(directory),
    )


class VisionRun:
    """A training run in a directory, which has the tokenizer already."""

    def __init__(self, output: Path, seed: int, compile_layers: bool) -> None:
        self.output = output
        self.seed = seed
        self.state_path = output / "state.pt"
        self.tokenizer = load_tokenizer(output)
        self.network = make_picture_network(self.tokenizer, seed)
        self.labels = PatchLabels()
        self.trained = nn.ModuleList((self.network, self.labels))
        self.optimizer = Optimizer(self.trained)
        self.progress = VisionProgress()
        if self.state_path.exists():
            state = torch.load(self.state_path)
            self.trained.load_state_dict(state["trained"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.progress = VisionProgress(**state["progress"])
        if compile_layers:
            for layer in self.network.model.language_model.layers:
                layer.compile(dynamic=True)

    def label_loss(self, scenes: list[Scene], states: Tensor) -> Tensor:
        return self.labels.loss(states, labels(scenes))

    def eye_loss(self, rng: random.Random) -> dict[str, Tensor]:
        scenes = [drawn_scene(rng) for _ in range(PICTURES // workers.count())]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            states = self.network.model.vision_tower(pixels(scenes)).last_hidden_state
            return {"loss": self.label_loss(scenes, states)}

    def picture_loss(self, batch: PictureBatch) -> dict[str, Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = self.network.model(
                input_ids=batch.ids,
                pixel_values=batch.pixels,
                attention_mask=batch.seen,
                position_ids=batch.positions,
                use_cache=False,
            )
            states = output.image_outputs.last_hidden_state
            asked = language_loss(self.network, output.last_hidden_state, batch)
            seen = self.label_loss(batch.scenes, states)
        return {"loss": asked + LABEL_WEIGHT * seen, "pictures": asked, "labels": seen}

    def text_loss(self, batch: Batch) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.network.model.language_model(batch.ids, use_cache=False)
            return language_loss(self.network, hidden.last_hidden_state, batch)

    def step(self, sources: dict[str, Iterator], rate: float) -> dict[str, float]:
        """One update; returns the losses."""
        if "scenes" in sources:
            losses = self.eye_loss(next(sources["scenes"]))
            losses["loss"].backward()
        else:
            losses = self.picture_loss(next(sources["pictures"]))
            losses["loss"].backward()
            losses["text"] = self.text_loss(next(sources["text"]))
            (TEXT_WEIGHT * losses["text"]).backward()
        workers.average_gradients(self.trained.parameters())
        self.optimizer.step(rate)
        return {name: loss.item() for name, loss in losses.items()}

    def sources(self, stage: curriculum.Stage) -> dict[str, Iterator]:
        """The endless sources of a stage; every worker draws pictures of its own."""
        rng = random.Random(f"{self.seed}-{self.progress.steps}-{workers.number()}")
        if stage is EYE:
            return {"scenes": iter(lambda: rng, None)}
        rows = Rows(self.tokenizer)
        return {
            "pictures": picture_batches(rows, rng, PICTURE_TOKENS // workers.count()),
            "text": text_batches(stage, self),
        }

    def save(self) -> None:
        if workers.number() != 0:
            return
        state = {
            "trained": self.trained.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": vars(self.progress),
        }
        torch.save(state, self.state_path.with_suffix(".new"))
        self.state_path.with_suffix(".new").replace(self.state_path)
        checkpoint = self.output / "checkpoint"
        export(self.network, self.tokenizer, checkpoint)
        describe(checkpoint, self.seed, self.progress)

    def run(self, minutes: float, steps: int | None, save_every: float, log_every: int) -> None:
        """Train until the budget is used up."""
        progress = self.progress
        recent = defaultdict(list)
        stage = None
        last_save = time.monotonic()
        while (share := workers.agreed(progress.share(minutes, steps))) < 1.0:
            start = time.monotonic()
            cpu_start = time.process_time()
            if curriculum.VISION_PLAN.stage_at(share) is not stage:
                stage = curriculum.VISION_PLAN.stage_at(share)
                sources = self.sources(stage)
            rate = curriculum.value_at(curriculum.VISION_PLAN.rate, share)
            for name, value in self.step(sources, rate).items():
                recent[name].append(value)
            progress.steps += 1
            progress.seconds += time.monotonic() - start
            progress.cpu_seconds += (time.process_time() - cpu_start) * workers.count()
            done = progress.steps_per_stage.get(stage.name, 0)
            progress.steps_per_stage[stage.name] = done + 1
            if progress.steps % log_every == 0 and workers.number() == 0:
                means = {name: sum(values) / len(values) for name, values in recent.items()}
                shown = " ".join(f"{name} {value:.3f}" for name, value in means.items())
                print(
                    f"{time.strftime('%H:%M:%S')} [{stage.name}] step {progress.steps} "
                    f"({share:.1%}, rate {rate:.2f}) {shown}",
                    flush=True,
                )
                recent.clear()
            if time.monotonic() - last_save > 60 * save_every:
                self.save()
                if stage is not EYE and workers.number() == 0:
                    print(report(self.network, self.tokenizer), flush=True)
                last_save = time.monotonic()
        self.save()


def train(output: Path, seed: int, compile_layers: bool, budget: tuple) -> None:
    """Train, in each worker; `budget` are the arguments of ``VisionRun.run``."""
    torch.set_num_threads(1)
    minutes, steps, save_every, log_every = budget
    VisionRun(output, seed, compile_layers).run(minutes, steps, save_every, log_every=log_every)


def main(
    output: Output,
    minutes: Minutes = 60.0,
    steps: Steps = None,
    seed: Annotated[int, typer.Option(help="Of scenes, text and start values.")] = 0,
    processes: Processes = 2,
    save_every: SaveEvery = 5.0,
    log_every: LogEvery = 20,
    compile_layers: Annotated[bool, typer.Option("--compile/--eager")] = True,
) -> None:
    """Train the picture model, or go on where the run in the directory stopped."""
    begin(output, {"seed": seed}, picture_tokenizer)
    budget = (minutes, steps, save_every, log_every)
    workers.in_workers(processes, train, output, seed, compile_layers, budget)


if __name__ == "__main__":
    typer.run(main)
