"""Text generation and chat in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from minivllm.entrypoints.chat_utils import render_chat
from minivllm.entrypoints.llm import LLM
from minivllm.sampling_params import RequestOutputKind, SamplingParams


def run_generate(prompts: list[str], model: str | None, params: dict) -> None:
    """Complete each prompt and print it with its completion."""
    sampling = SamplingParams(**params)
    llm = LLM(model)
    console = Console(highlight=False, emoji=False)
    for output in llm.generate(prompts, sampling):
        text = f"[bold]{escape(output.prompt or '')}[/]{escape(output.outputs[0].text)}"
        console.print(text, soft_wrap=True)


def stream_chat(llm: LLM, conversation: list[dict], params: SamplingParams) -> Iterator[str]:
    """Generate the answer to a conversation, piece by piece."""
    prompt = render_chat(llm.get_tokenizer(), conversation, add_generation_prompt=True)
    for output in llm.stream(prompt, replace(params, output_kind=RequestOutputKind.DELTA)):
        yield output.outputs[0].text


def run_chat(model: str | None, system: str | None, params: dict, quick: str | None = None) -> None:
    """Chat with a model in this process."""
    sampling = SamplingParams(**params)
    llm = LLM(model)
    talk(lambda conversation: stream_chat(llm, conversation, sampling), system, quick)


def talk(
    answer: Callable[[list[dict]], Iterator[str]], system: str | None, quick: str | None = None
) -> None:
    """Read questions and show answers, until an empty line, Ctrl-D or Ctrl-C.

    Args:
        answer: yields the answer to a conversation, piece by piece. If it raises ``ValueError``,
            the message is shown and the question forgotten.
        system: the system prompt, or a file that holds it.
        quick: the only question; None to read questions.
    """
    conversation = []
    if system is not None:
        conversation.append({"role": "system", "content": _text_of(system)})
    console = Console(highlight=False, emoji=False)
    if quick is not None:
        show(console, answer([*conversation, {"role": "user", "content": quick}]))
        return
    console.print("[dim]An empty line or Ctrl-D ends the conversation.[/]")
    while question := ask(console):
        conversation.append({"role": "user", "content": question})
        console.print("[bold]minivllm:[/] ", end="")
        said = attempt(console, answer(conversation))
        if said is None:  # most often: the conversation has become too long
            conversation.pop()
            continue
        conversation.append({"role": "assistant", "content": said})


def ask(console: Console) -> str:
    """Read a line at a prompt; empty at Ctrl-D or Ctrl-C."""
    try:
        return console.input("[bold]You:[/] ").strip()
    except (EOFError, KeyboardInterrupt):
        return ""


def attempt(console: Console, pieces: Iterator[str]) -> str | None:
    """Like ``show``, but print a ``ValueError`` and return None."""
    try:
        return show(console, pieces)
    except ValueError as error:
        console.print(f"[red]{escape(str(error))}[/]", soft_wrap=True)
        return None


def show(console: Console, pieces: Iterator[str]) -> str:
    """Print pieces as they come, until they end or Ctrl-C. Returns the printed text."""
    said = ""
    try:
        for piece in pieces:
            said += piece
            console.print(escape(piece), end="", soft_wrap=True)
    except KeyboardInterrupt:
        console.print(" [dim](interrupted)[/]", end="")
    console.print()
    return said


def _text_of(system: str) -> str:
    """A system prompt, or that in a file of this name."""
    if not _is_file(system):
        return system
    try:
        return Path(system).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{system} must be a text in UTF-8 ({error}).") from error


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # longer than a file name can be
        return False
