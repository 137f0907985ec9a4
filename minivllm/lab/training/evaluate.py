"""Exact-match rates of the embedded model: ``python -m minivllm.lab.training.evaluate``.

The model is run by minivllm's own engine, greedily, on cases it never saw in training.
"""

from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from minivllm.embedded import embedded_model_path
from minivllm.entrypoints.llm import LLM
from minivllm.lab.training.manifest import update_manifest
from minivllm.lab.training.suites import Case, all_suites
from minivllm.sampling_params import SamplingParams

MAX_TOKENS = 96


def answers(llm: LLM, cases: list[Case]) -> list[str]:
    """Greedy answers of an engine with vLLM's interface, in the order of the cases."""
    greedy = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    found: dict[int, str] = {}
    chats = [index for index, case in enumerate(cases) if not isinstance(case.prompt, str)]
    texts = [index for index, case in enumerate(cases) if isinstance(case.prompt, str)]
    for indices, run in ((chats, llm.chat), (texts, llm.generate)):
        if indices:
            outputs = run([cases[index].prompt for index in indices], greedy, use_tqdm=False)
            for index, output in zip(indices, outputs, strict=True):
                found[index] = output.outputs[0].text
    return [found[index] for index in range(len(cases))]


def is_right(case: Case, answer: str) -> bool:
    """Chat answers must be equal; a plain text goes on, so only its start is compared."""
    if isinstance(case.prompt, str):
        return answer.strip().startswith(case.expected.strip())
    return answer == case.expected


def main(
    model: Annotated[Path | None, typer.Option(help="Checkpoint directory.")] = None,
    count: Annotated[int, typer.Option(help="Cases per random suite.")] = 60,
    seed: str = "evaluation",
    save: Annotated[bool, typer.Option("--save", help="Write into manifest.json.")] = False,
    show_wrong: Annotated[bool, typer.Option("--show-wrong", help="Print wrong answers.")] = False,
) -> None:
    """Print a table of exact-match rates."""
    directory = model or embedded_model_path()
    llm = LLM(model=str(directory))
    console = Console()
    table = Table("suite", "cases", "exact")
    by_column: dict[str, list[bool]] = defaultdict(list)
    rates = {}
    for name, cases in all_suites(seed, count).items():
        found = answers(llm, cases)
        right = [is_right(case, answer) for case, answer in zip(cases, found, strict=True)]
        rates[name] = round(sum(right) / len(right), 4)
        table.add_row(name, str(len(right)), f"{rates[name]:.1%}")
        for case, answer, good in zip(cases, found, right, strict=True):
            if "table" in name:
                by_column[f"{name.split(',')[0]}: {case.label}"].append(good)
            if show_wrong and not good:
                console.print(f"{name}: {answer!r}, expected {case.expected!r}", markup=False)
    columns = {
        column: round(sum(right) / len(right), 4) for column, right in sorted(by_column.items())
    }
    for column, column_rate in columns.items():
        table.add_row(column, str(len(by_column[column])), f"{column_rate:.1%}")
    console.print(table)
    if save:
        update_manifest(directory, scores={"suites": rates, "table columns": columns})


if __name__ == "__main__":
    typer.run(main)
