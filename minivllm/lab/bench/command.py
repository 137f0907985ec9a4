"""Command line of ``minivllm bench``; each command is a function in a file beside this one."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from minivllm.utils.console import exit_on_bad_input, needs_extra

app = typer.Typer(help="Measure, beside the machine's own ceiling.", no_args_is_help=True)

BENCHMARKS = {
    "scheduler": "Cost of deciding: µs per request and step, per block hashed, per prompt "
    "looked up.",
    "throughput": "Tokens per second on seeded work, beside the roofline.",
    "latency": "Seconds to the first token and of a decode step of one batch, beside the roofline.",
    "kernels": "One layer's attention by backend, beside bandwidth and matrix rate.",
    "speculation": "Tokens a step and seconds with drafts, by kind of text; what a step of q rows "
    "costs.",
    "structured": "Grammars of structured outputs: to compile them, a mask's row, and its share "
    "of a step.",
    "lora": "Seconds of seeded work without adapters, with none in use, and with several.",
    "embed": "Texts a second of a BERT, beside sentence-transformers if it is installed.",
    "images": "Steps over pictures, towers beside transformers', and a second question about one.",
    "quantization": "Decode steps of one shape in 32, 16, 8 and 4 bits, with the bytes of its "
    "weights.",
    "kv-cache": "Decode steps of long contexts with K and V in 16 and in 8 bits, in turn.",
    "transfer": "Seconds of a prompt's K and V from one engine to another, beside computing it.",
    "cpu": "Seconds of W1, W2 and W4 on a CPU, in float32 and bfloat16, and beside a busy process.",
    "start": "Seconds from a process's start to its first token, nothing compiled, and all.",
    "ranks": "Seconds of seeded work by one process and by several ranks, in turn; an all-reduce.",
    "all": "Run the benchmarks of this kind of machine, one after the other.",
}


class _Lazy(TyperCommand):
    """A benchmark, whose file is imported when it is called: most need torch."""

    def make_context(self, info_name, args, parent=None, **extra) -> Any:
        """The context of the function ``bench_NAME``, whose parameters are the options."""
        file = "everything" if info_name == "all" else info_name.replace("-", "_")
        module = import_module(f"minivllm.lab.bench.{file}")
        one = typer.Typer(add_completion=False)
        function = exit_on_bad_input()(getattr(module, f"bench_{info_name.replace('-', '_')}"))
        one.command(help=self.help)(function)
        with exit_on_bad_input():
            return typer.main.get_command(one).make_context(info_name, args, parent, **extra)


for name, text in BENCHMARKS.items():
    app.command(name, cls=_Lazy, help=text)(lambda: None)


@app.command(
    context_settings={
        "allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": [],
    }
)  # fmt: skip
def serve(context: typer.Context) -> None:
    """TTFT, TPOT, ITL of any OpenAI server under a load; `serve --help` lists the flags."""
    with exit_on_bad_input():
        with needs_extra("serve"):
            from minivllm.lab.bench.serving.command import bench_serve
        figures = bench_serve(context.args)
    if not figures["completed"]:
        raise typer.Exit(1)
