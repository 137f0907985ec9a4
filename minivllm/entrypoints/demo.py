"""``minivllm demo``: generate, chat and a report, in under a minute."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from minivllm.entrypoints.llm import LLM
from minivllm.lab.viz import save_html, timeline
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
    llm = LLM(
        max_model_len=1024, num_gpu_blocks_override=97, max_num_batched_tokens=128, trace=True
    )
    lines = [f"The embedded model is loaded ({time.perf_counter() - start:.1f} s).\n"]

    params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=24, seed=0)
    outputs = llm.generate(asked["prompts"], params)
    for output in outputs:
        lines.append(f"  [bold]{escape(output.prompt or '')}[/]{escape(output.outputs[0].text)}")

    lines.append("\nA table in the system prompt, asked twice:")
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
        text = f"  [bold]{escape(question)}[/] {escape(answer.outputs[0].text)}"
        lines.append(f"{text} [dim]({cost}, {seconds:.2f} s)[/]")

    lines.append("\nWhat just ran, step by step:")
    trace = llm.trace
    assert trace is not None, "it was asked for"
    decode = llm.get_tokenizer().decode
    try:
        save_html(trace, report, "minivllm demo", outputs, decode=lambda token: decode([token]))
    finally:
        console.rule("[bold]minivllm demo")
        for line in lines:
            console.print(line, soft_wrap=True)
        console.print(timeline(trace).text, markup=False, soft_wrap=True)
    console.print(f"\nThe same with every block, step by step: [bold]{report.resolve()}[/]")
