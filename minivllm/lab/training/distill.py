"""Distill a draft of the embedded model.

``python -m minivllm.lab.training.distill --output DIR``

A narrow network reads the training's text and learns what the embedded model itself would say
there: its whole distribution, wherever it answers. A draft need not be right, only agree.
(Hinton et al. 2015, "Distilling the Knowledge in a Neural Network")
"""

from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from transformers import Qwen2ForCausalLM

from minivllm.embedded import embedded_model_path
from minivllm.lab.training import workers
from minivllm.lab.training.batches import Batch
from minivllm.lab.training.curriculum import DRAFT_PLAN
from minivllm.lab.training.export import load_network
from minivllm.lab.training.tokenization import load_tokenizer
from minivllm.lab.training.train import (
    CompileLayers,
    LogEvery,
    Minutes,
    Output,
    Processes,
    Run,
    SaveEvery,
    Steps,
    begin,
    train,
)

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
         "num_attention_heads": 4}  # fmt: skip


def answers(network: Qwen2ForCausalLM, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Log probabilities ``[n, vocab]`` of what comes next, at the places where text is learnt."""
    learnt = batch.weights[:, 1:] > 0
    return network.lm_head(hidden[:, :-1][learnt]).float().log_softmax(-1)


class DraftRun(Run):
    """A training run whose aim is not the text but what the embedded model says of it."""

    def __init__(self, output: Path, teacher: Path, seed: int, compile_layers: bool) -> None:
        self.teacher = load_network(teacher)
        super().__init__(output, seed, SIZES, plan=DRAFT_PLAN, compile_layers=compile_layers)

    @torch.no_grad()
    def set_start_values(self) -> None:
        """Its embedding is the teacher's, in the directions in which tokens differ most."""
        wide = self.teacher.model.embed_tokens.weight
        directions = torch.linalg.svd(wide - wide.mean(0), full_matrices=False).Vh
        narrow = (wide - wide.mean(0)) @ directions[: SIZES["hidden_size"]].T
        self.network.model.embed_tokens.weight.copy_(narrow / narrow.std())
        super().set_start_values()

    def loss(self, hidden: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, dict[str, float]]:
        """Mean divergence from the teacher's distribution; how often their best tokens agree."""
        with torch.no_grad():
            heard = self.teacher.model(batch.ids, use_cache=False).last_hidden_state
            wanted = answers(self.teacher, heard, batch)
        found = answers(self.network, hidden, batch)
        equal = (found.argmax(-1) == wanted.argmax(-1)).float().mean().item()
        loss = F.kl_div(found, wanted, reduction="batchmean", log_target=True)
        return loss, {"equal": equal}


def main(
    output: Output,
    minutes: Minutes = 20.0,
    steps: Steps = None,
    seed: Annotated[int, typer.Option(help="Of text and start values.")] = 0,
    processes: Processes = 2,
    save_every: SaveEvery = 5.0,
    log_every: LogEvery = 50,
    compile_layers: CompileLayers = True,
) -> None:
    """Train a draft of the embedded model from nothing, or go on where the run in OUTPUT stopped.

    The Hugging Face directory of the draft as it is lies in OUTPUT/checkpoint.
    """
    teacher = embedded_model_path()
    begin(output, {"seed": seed, "draft": True}, partial(load_tokenizer, teacher))
    make_run = partial(DraftRun, output, teacher, seed=seed, compile_layers=compile_layers)
    workers.in_workers(processes, train, make_run, (minutes, steps, save_every, log_every))


if __name__ == "__main__":
    typer.run(main)
