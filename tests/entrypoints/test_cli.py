"""The command, as people run it."""

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from minivllm.cli import app
from minivllm.version import __version__

pytestmark = pytest.mark.slow


def run(*args, **kwargs):
    return CliRunner().invoke(app, [str(a) for a in args], **kwargs)


def test_version():
    assert run("--version").output == f"minivllm {__version__}\n"


def test_as_a_module():
    command = [sys.executable, "-m", "minivllm", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"minivllm {__version__}\n"


def test_help_names_every_command():
    output = run("--help").output
    panels = re.findall(r"─ ([A-Z][a-z ]+) ─", output)
    assert panels == ["Options", "Try", "Serve", "Look inside", "Build and teach", "Measure"]
    commands = re.findall(r"^│ ([a-z]+) ", output, re.MULTILINE)
    assert commands[:3] == ["demo", "generate", "chat"]
    assert commands[4] == "serve"
    assert {"playground", "complete", "glass", "xray", "grade", "lab", "bench"} < set(commands)


def test_generate(tiny_chat):
    args = ("generate", "one", "two", "--model", tiny_chat, "--max-tokens", 4, "--seed", 1)
    first, again = run(*args), run(*args)
    assert first.exit_code == 0
    lines = first.stdout.split("\n")
    assert any(line.startswith("one") for line in lines)
    assert first.stdout == again.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("generate", "x", "--model", "/no/such/model"), "is not a directory"),
        (("generate", "x", "--model", "[/x]"), "model '[/x]' is not a directory"),
        (("generate", "x", "--top-p", "7"), "top_p must be a number above 0 and at most 1"),
        (("generate", ""), "the prompt is empty"),
    ],
)
def test_bad_input_is_one_sentence(args, message):
    result = run(*args)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_chat_streams_and_remembers(tiny_chat, monkeypatch):
    import minivllm.entrypoints.terminal as terminal

    seen = []
    original = terminal.stream_chat

    def listen(llm, conversation, params):
        seen.append([m["role"] for m in conversation])
        return original(llm, conversation, params)

    monkeypatch.setattr(terminal, "stream_chat", listen)
    args = ("chat", "--model", tiny_chat, "--system", "Be brief.", "--max-tokens", 3)
    result = run(*args, input="Hello\nAgain\n\n")
    assert result.exit_code == 0
    turn = ["user", "assistant"]
    assert seen == [["system", "user"], ["system", *turn, "user"]]
    assert result.stdout.count("minivllm:") == 2


def test_a_system_prompt_in_another_encoding_is_one_sentence(tiny_chat, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_bytes("Größe".encode("latin-1"))
    result = run("chat", "--model", tiny_chat, "--system", file, "--quick", "x")
    assert result.exit_code == 2
    assert "prompt.txt must be a text in UTF-8" in "".join(result.stderr.split("\n"))


def test_the_demo_answers_and_writes_its_report(tmp_path):
    report = tmp_path / "report.html"
    result = run("demo", "--report", report)
    assert result.exit_code == 0, result.output
    assert "The capital of France is Paris" in result.stdout
    assert "The age of Cleo Hart is 51." in result.stdout
    assert "The phone number of Ben Ortiz is 555-7719." in result.stdout
    assert re.search(r"^tokens .*█", result.stdout, re.MULTILINE), "the timeline"
    assert report.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
