"""Skills of the embedded model by the bits of its weights.

``python -m minivllm.lab.quantize.skills`` writes ``skills.toml`` beside this file: for each
way to round, how many answers of each kind are right. Weights are rounded and stored as floats
again, so that any number of bits can be tried; the answers are those of the packed weights.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file

from minivllm.embedded import embedded_model_path
from minivllm.entrypoints.llm import LLM
from minivllm.lab.quantize.command import calibration_texts
from minivllm.lab.quantize.model import quantize_model
from minivllm.lab.training.evaluate import answers, is_right
from minivllm.lab.training.suites import Case, all_suites
from minivllm.models.loader import load_config, load_model

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("skills.toml")
GROUP = 32
NUM_TEXTS = 32
CASES = 60
OF_A_TABLE = 15
WAYS = {"float": None, "8 bits": ("rtn", 8), "4 bits": ("rtn", 4), "3 bits": ("rtn", 3),
        "2 bits": ("rtn", 2), "2 bits, GPTQ": ("gptq", 2)}  # fmt: skip


def save_rounded(target: Path, bits: int, method: str = "rtn", num_texts: int = 0) -> None:
    """Write the embedded model with rounded weights, as a float checkpoint.

    Args:
        target: a directory, which is made.
        bits: of each number.
        method: "rtn" or "gptq", which needs ``num_texts`` calibration texts.
    """
    source = embedded_model_path()
    config = load_config(source)
    model = load_model(source, config, torch.float32, device=torch.device("cpu"))
    texts = list(calibration_texts(source, config.max_model_len, num_texts))
    for _ in quantize_model(model, texts, method, bits=bits, group=GROUP, sym=False):
        pass  # it is done in place
    target.mkdir(parents=True, exist_ok=True)
    for file in source.glob("*.json"):
        (target / file.name).write_bytes(file.read_bytes())
    described = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (target / "config.json").write_text(json.dumps(described | {"torch_dtype": "float32"}), "utf-8")
    tensors = {name: tensor.contiguous() for name, tensor in model.checkpoint_tensors().items()}
    save_file(tensors, target / "model.safetensors", {"format": "pt"})


def cases_by_skill() -> dict[str, list[Case]]:
    """Cases of the evaluation's suites: small talk, capitals, tables by their rows, and so on."""
    skills: dict[str, list[Case]] = {f"table of {n} rows": [] for n in (3, 10, 20, 30)}
    for suite, cases in all_suites("evaluation", CASES).items():
        is_table = " rows" in suite
        name = f"table of {suite.split(', ')[1]}" if is_table else suite.split(",")[0]
        skills.setdefault(name, []).extend(cases[:OF_A_TABLE] if is_table else cases)
    return skills


def count_right(llm: LLM, cases: list[Case]) -> int:
    """Number of the engine's greedy answers that are right."""
    return sum(map(is_right, cases, answers(llm, cases)))


def measure() -> Iterator[tuple[str, dict[str, int]]]:
    """Right answers of each skill, one way to round after the other."""
    for name, way in WAYS.items():
        with TemporaryDirectory() as folder:
            if way is not None:
                save_rounded(
                    Path(folder), way[1], way[0], num_texts=NUM_TEXTS if way[0] == "gptq" else 0
                )
            llm = LLM(str(embedded_model_path() if way is None else folder), dtype="float32")
            yield (
                name,
                {skill: count_right(llm, cases) for skill, cases in cases_by_skill().items()},
            )


def measured_skills() -> dict[str, dict[str, int]]:
    """Right answers by way and skill, from ``skills.toml``; "cases" has the numbers of cases."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def main() -> None:
    cases = {skill: len(found) for skill, found in cases_by_skill().items()}
    lines = ["# Right answers of the embedded model. Written by skills.py."]
    for name, numbers in [("cases", cases), *measure()]:
        lines += [
            "",
            f'["{name}"]',
            *(f'"{skill}" = {number}' for skill, number in numbers.items()),
        ]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
