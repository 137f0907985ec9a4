"""Distill a draft of the embedded model.

``python -m minivllm.embedded.training.distill --output DIR``

A narrow network reads the training's text and learns what the embedded model itself would say
there: its whole distribution, wherever it answers. A draft need not be right, only agree.
(Hinton et al. 2015, "Distilling the Knowledge in a Neural Network")
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from transformers import Qwen2ForCausalLM

from minivllm.embedded import embedded_model_path
from minivllm.embedded.data.corpus import Mixture
from minivllm.embedded.training import curriculum
from minivllm.embedded.training.batches import Batch, batches, encoded_stream
from minivllm.embedded.training.export import export, load_network
from minivllm.embedded.training.network import make_network
from minivllm.embedded.training.optimizer import Optimizer
from minivllm.embedded.training.tokenization import load_tokenizer

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
         "num_attention_heads": 4}  # fmt: skip
MIXTURE = Mixture(
    ((curriculum.TINY, 0.15), (curriculum.SMALL, 0.2), (curriculum.MIDDLE, 0.1),
     (curriculum.LARGE, 0.05)), curriculum.LAST,
)  # fmt: skip
BATCH_TOKENS = 4096
RATE = ((0.0, 0.0), (0.02, 1.0), (0.4, 1.0), (1.0, 0.0))


@torch.no_grad()
def start_from_teacher(student: Qwen2ForCausalLM, teacher: Qwen2ForCausalLM) -> None:
    """Begin with the teacher's embedding, in the directions in which its tokens differ most."""
    wide = teacher.model.embed_tokens.weight
    directions = torch.linalg.svd(wide - wide.mean(0), full_matrices=False).Vh
    narrow = (wide - wide.mean(0)) @ directions[: student.config.hidden_size].T
    student.model.embed_tokens.weight.copy_(narrow / narrow.std())


def answers(network: Qwen2ForCausalLM, batch: Batch) -> torch.Tensor:
    """Log probabilities ``[n, vocab]`` of what comes next, at the places where text is learnt."""
    hidden = network.model(batch.ids, use_cache=False).last_hidden_state
    learnt = batch.weights[:, 1:] > 0
    return network.lm_head(hidden[:, :-1][learnt]).float().log_softmax(-1)


def distillation_loss(
    student: Qwen2ForCausalLM, teacher: Qwen2ForCausalLM, batch: Batch
) -> tuple[torch.Tensor, float]:
    """Mean divergence of the student from the teacher; how often their best tokens agree."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            wanted = answers(teacher, batch)
        found = answers(student, batch)
    loss = F.kl_div(found, wanted, reduction="batchmean", log_target=True)
    return loss, (found.argmax(-1) == wanted.argmax(-1)).float().mean().item()


def distill(
    teacher_directory: Path, output: Path, minutes: float, seed: int, log_every: int
) -> list[float]:
    """Train a draft and write it; returns the share of equal best tokens, one per log line.

    Args:
        teacher_directory: the model that is to be drafted for, as ``export`` writes it.
        output: where the draft goes.
        minutes: of this process's own CPU time, so that a busy machine changes nothing.
        seed: of text and start values.
        log_every: steps between log lines.
    """
    torch.set_num_threads(1)
    tokenizer, teacher = load_tokenizer(teacher_directory), load_network(teacher_directory)
    student = make_network(tokenizer.get_vocab_size(), SIZES, seed)
    start_from_teacher(student, teacher)
    optimizer, agreement, recent = Optimizer(student), [], []
    stream = encoded_stream(MIXTURE, tokenizer, f"{seed}-draft")
    source: Iterator[Batch] = batches(stream, random.Random(seed), BATCH_TOKENS)
    begin = time.process_time()
    while (share := (time.process_time() - begin) / (60 * minutes)) < 1.0:
        loss, agreed = distillation_loss(student, teacher, next(source))
        loss.backward()
        optimizer.step(curriculum.value_at(RATE, share))
        recent.append((loss.item(), agreed))
        if len(recent) == log_every:
            mean_loss, mean_agreed = (
                sum(column) / log_every for column in zip(*recent, strict=True)
            )
            print(f"{share:4.0%}: divergence {mean_loss:.3f}, equal {mean_agreed:.1%}", flush=True)
            agreement.append(mean_agreed)
            recent.clear()
            export(student, tokenizer, output)  # as it is, should somebody end this
    export(student, tokenizer, output)
    return agreement


def main(
    output: Annotated[Path, typer.Option(help="Directory of the draft model.")],
    minutes: Annotated[float, typer.Option(help="CPU time, of one thread.")] = 20.0,
    seed: Annotated[int, typer.Option(help="Of text and start values.")] = 0,
    log_every: Annotated[int, typer.Option(help="Steps between log lines.")] = 50,
) -> None:
    """Train a draft of the embedded model from nothing."""
    distill(embedded_model_path(), output, minutes, seed, log_every)


if __name__ == "__main__":
    typer.run(main)
