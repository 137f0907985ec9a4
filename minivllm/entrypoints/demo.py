"""``minivllm demo``: generate, chat and a report, in under a minute."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from minivllm.entrypoints.llm import LLM
from minivllm.lab.viz import save_html, timeline
from minivllm.lab.viz.draw.palette import owners_of
from minivllm.sampling_params import SamplingParams
from minivllm.utils.toml_data import load_toml


def run_demo(report: Path) -> None:
    """Generate, chat, and write a report of the engine's steps; then print.

    So no terminal that cannot show something keeps the report from being written, and no disk that
    is full keeps the answers from being shown.
    """
    console = Console(highlight=False, emoji=False)
    asked = load_toml(__package__, "demo")
    start = time.perf_counter()
    with waiting_for("The model is loaded, and its kernels are made ready ..."):
        llm = LLM(
            max_model_len=1024, num_gpu_blocks_override=97, max_num_batched_tokens=128, trace=True
        )
    loaded = f"The embedded model is loaded ({time.perf_counter() - start:.1f} s)."

    sentence = SamplingParams(
        temperature=0, max_tokens=64, stop=["."], include_stop_str_in_output=True
    )
    with waiting_for("It answers ..."):
        outputs = llm.generate(asked["prompts"], sentence, use_tqdm=False)
    texts = [f"[bold]{escape(it.prompt or '')}[/]{escape(it.outputs[0].text)}" for it in outputs]

    system = {"role": "system", "content": asked["system"]}
    for question in asked["questions"]:
        start = time.perf_counter()
        answer = llm.chat(
            [system, {"role": "user", "content": question}],
            SamplingParams(temperature=0, max_tokens=48),
            use_tqdm=False,
        )[0]
        seconds = time.perf_counter() - start
        outputs.append(answer)
        cost = f"{len(answer.prompt_token_ids)} prompt tokens, {answer.num_cached_tokens} cached"
        text = f"[bold]{escape(question)}[/] {escape(answer.outputs[0].text)}"
        texts.append(f"{text} [dim]({cost}, {seconds:.2f} s)[/]")

    trace = llm.trace
    assert trace is not None, "it was asked for"
    owners = owners_of(trace)
    letters = [owners[output.request_id].letter for output in outputs]
    decode = llm.get_tokenizer().decode
    try:
        save_html(trace, report, "minivllm demo", outputs, decode=lambda token: decode([token]))
    finally:
        console.rule("[bold]minivllm demo")
        console.print(f"{loaded}\n")
        num_prompts = len(asked["prompts"])
        print_lettered(console, letters[:num_prompts], texts[:num_prompts])
        console.print("\nA table in the system prompt, asked twice:")
        print_lettered(console, letters[num_prompts:], texts[num_prompts:])
        console.print("\nWhat just ran, step by step:")
        console.print(timeline(trace).text, markup=False, soft_wrap=True)
    console.print("\nThe same with every block, step by step:")
    console.print(f"[bold]{report.resolve()}[/]", soft_wrap=True)


def waiting_for(what: str) -> Status:
    """Say what happens, in a terminal only; leave the context to take it away."""
    return Console(stderr=True).status(what, spinner="line")


def print_lettered(console: Console, letters: list[str], texts: list[str]) -> None:
    """Print answers behind the letters that their rows of the timeline have."""
    table = Table.grid(padding=(0, 1))
    table.add_column(style="bold cyan")
    table.add_column()
    for letter, text in zip(letters, texts, strict=True):
        table.add_row(f" {letter}", text)
    console.print(table)
