"""Generating and chatting in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from minivllm.entrypoints.chat_utils import render_chat
from minivllm.entrypoints.llm import LLM
from minivllm.sampling_params import RequestOutputKind, SamplingParams


def run_generate(prompts: list[str], model: str | None, params: dict) -> None:
    """Complete each prompt and print it with its completion."""
    llm, console = LLM(model), Console(highlight=False, emoji=False)
    for output in llm.generate(prompts, SamplingParams(**params)):
        text = f"[bold]{escape(output.prompt)}[/]{escape(output.outputs[0].text)}"
        console.print(text, soft_wrap=True)


def stream_chat(llm: LLM, conversation: list[dict], params: SamplingParams) -> Iterator[str]:
    """The answer to a conversation, piece by piece as it is generated."""
    prompt = render_chat(llm.get_tokenizer(), conversation, add_generation_prompt=True)
    for output in llm.stream(prompt, replace(params, output_kind=RequestOutputKind.DELTA)):
        yield output.outputs[0].text


def run_chat(model: str | None, system: str | None, params: dict) -> None:
    """Ask, answer, remember; until an empty line, Ctrl-D or Ctrl-C."""
    sampling_params = SamplingParams(**params)
    conversation = []
    if system is not None:
        text = Path(system).read_text() if _is_file(system) else system
        conversation.append({"role": "system", "content": text})
    llm, console = LLM(model), Console(highlight=False, emoji=False)
    console.print("[dim]An empty line or Ctrl-D ends the conversation.[/]")
    while True:
        try:
            question = console.input("[bold]You:[/] ").strip()
        except (EOFError, KeyboardInterrupt):
            question = ""
        if not question:
            return
        conversation.append({"role": "user", "content": question})
        console.print("[bold]minivllm:[/] ", end="")
        answer = ""
        try:
            for piece in stream_chat(llm, conversation, sampling_params):
                answer += piece
                console.print(escape(piece), end="", soft_wrap=True)
        except KeyboardInterrupt:
            console.print(" [dim](interrupted)[/]", end="")
        except ValueError as error:  # most often: the conversation has become too long
            console.print(f"[red]{escape(str(error))}[/]", soft_wrap=True)
            conversation.pop()
            continue
        console.print()
        conversation.append({"role": "assistant", "content": answer})


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # longer than a file name can be
        return False
