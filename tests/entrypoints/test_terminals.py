"""Every command in a terminal that cannot show everything: an answer is never lost."""

import os
import re
import subprocess
import sys

import pytest
from helpers import nightly

SIGNS = "Où est Übung – µ 猫 🎉 ▏█ \udc80"
# The commands as they are run; what they call shows these signs, or fails with them.
EVERY_COMMAND = f"""
import os
import sys
from importlib import import_module
from pathlib import Path

from minivllm.cli import app
from minivllm.lab.sim.__main__ import app as sim

SIGNS = {SIGNS!a}


def show(*args, **options):
    print(SIGNS)
    print(SIGNS, file=sys.stderr)
    return 0


def fail(*args, **options):
    raise ValueError(SIGNS)


class Model:
    def __init__(self, *args, **options):
        pass

    def chat(self, conversation):
        yield from (SIGNS, SIGNS)

    complete = chat


def put(module, name, value):
    setattr(import_module(f"minivllm.{{module}}"), name, value)


put("entrypoints.demo", "run_demo", show)
put("entrypoints.terminal", "run_generate", show)
put("entrypoints.terminal", "LLM", Model)
put("entrypoints.terminal", "stream_chat", lambda llm, conversation, params: llm.chat(conversation))
put("entrypoints.remote", "RemoteModel", Model)
put("entrypoints.openai.api_server", "main", show)
put("lab.quantize.command", "run_quantize", fail)
put("xray.file_run", "run_attached", show)
put("xray.command", "run_xray", show)
put("course.classroom.repository", "new_repository", lambda *args: [SIGNS])
put("course.classroom.handout", "write_handouts", lambda *args: [SIGNS])
Grade = import_module("minivllm.course.classroom.grade").Grade
put("course.classroom.grade", "grade_all", lambda paths, *args: [Grade(str(p)) for p in paths])
put("course.playground.server", "PlaygroundServer", fail)
put("lab.bench.latency", "bench_latency", lambda: show())
put("lab.sim.__main__", "describe", lambda result: SIGNS)
_, file, *encodings = sys.argv
for encoding in encodings:
    if encoding != "as it is":
        sys.stdout = open(f"{{encoding}}.out", "w", encoding=encoding)
        sys.stderr = open(f"{{encoding}}.err", "w", encoding=encoding, errors="backslashreplace")
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        sys.argv[1:] = os.fsdecode(line.encode()).split()
        print("\\ncommand", flush=True)
        print("\\ncommand", flush=True, file=sys.stderr)
        try:
            (sim if line.startswith("run ") else app)()
        except SystemExit as ended:
            print("\\nstatus", ended.code, flush=True)
"""
HELP = ("--help", "bench --help", "bench scheduler --help", "bench kernels --help", "lab --help")
COMMANDS = {
    "demo": 0, "generate a": 0, "chat -q a": 0, "chat -q a --url http://x": 0, "complete -q a": 0,
    "quantize a b": 2, "glass --attach a": 0, "xray a": 0, "serve": 0, "lab new a": 0,
    "lab handout a.ipynb --student a --to b": 0, "grade übung.ipynb": 0,
    "playground --no-browser": 2, "bench latency": 0, "run --requests 2": 0,
    **dict.fromkeys(HELP, 0),
}  # fmt: skip
IN_C = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def environment(locale):
    """This one, with another locale; a notebook's or a test's own encoding is left out."""
    return {name: text for name, text in os.environ.items() if name != "PYTHONIOENCODING"} | locale


def run_all(folder, commands, *encodings, locale=None):
    """Run commands in one process, once for each encoding of its streams."""
    (folder / "commands").write_text("\n".join(commands), encoding="utf-8")
    command = [sys.executable, "-c", EVERY_COMMAND, str(folder / "commands"), *encodings]
    env = environment(locale or {})
    return subprocess.run(command, capture_output=True, env=env, cwd=folder, check=True)


def check_answers(out, err, encoding):
    """Each command ended as it should, and what it said is there but for the signs that are not."""
    out, err = out.decode(encoding), err.decode(encoding)
    assert "Traceback" not in err, err
    assert re.findall(r"^status (\w+)", out, re.MULTILINE) == [str(n) for n in COMMANDS.values()]
    outs, errs = (text.split("\ncommand")[1:] for text in (out, err))
    answer = SIGNS.encode(encoding, "replace").decode(encoding)
    error = SIGNS.encode(encoding, "backslashreplace").decode(encoding)
    for one, other, (line, status) in zip(outs, errs, COMMANDS.items(), strict=True):
        if line.startswith("grade"):
            assert re.search(r"^.{1,2}bung.ipynb: ", one, re.MULTILINE), one
        elif line not in HELP:
            assert answer in one if status == 0 else error in other, (line, one, other)


def test_no_command_loses_an_answer(tmp_path):
    encodings = ("ascii", "cp1252", "latin-1", "cp437", "utf-8")
    run_all(tmp_path, COMMANDS, *encodings)
    for encoding in encodings:
        out, err = (tmp_path / f"{encoding}.{name}" for name in ("out", "err"))
        check_answers(out.read_bytes(), err.read_bytes(), encoding)


@pytest.mark.slow
@pytest.mark.parametrize(
    "locale",
    [
        pytest.param(IN_C, id="C"),
        pytest.param({"PYTHONIOENCODING": "ascii"}, id="ascii", marks=nightly),
    ],
)
def test_no_command_loses_an_answer_in_a_poor_locale(locale, tmp_path):
    done = run_all(tmp_path, COMMANDS, "as it is", locale=locale)
    check_answers(done.stdout, done.stderr, "ascii")


@pytest.mark.slow
def test_another_way_that_was_chosen_is_kept(tmp_path):
    locale = {"PYTHONIOENCODING": "ascii:xmlcharrefreplace"}
    done = run_all(tmp_path, ["generate a"], "as it is", locale=locale)
    assert SIGNS.encode("ascii", "xmlcharrefreplace") in done.stdout


@pytest.mark.slow
def test_the_demo_in_an_old_code_page_and_80_columns(tmp_path):
    """Answers end with a sentence, stand behind their letters, and no line is cut inside a word."""
    command = [sys.executable, "-m", "minivllm", "demo", "--report", "report.html"]
    locale = {"PYTHONIOENCODING": "cp1252", "COLUMNS": "80"}
    done = subprocess.run(command, capture_output=True, env=environment(locale), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *lines, path = done.stdout.decode("cp1252").splitlines()
    assert path.endswith("report.html")
    assert max(map(len, lines)) <= 80
    said = " ".join(" ".join(lines).split())
    for letter, text in {
        "A": "Hello, my name is Isabel.", "C": "The capital of France is Paris.",
        "E": "How old is Cleo Hart? The age of Cleo Hart is 51. (",
        "F": "What is Ben Ortiz's phone number?",
    }.items():  # fmt: skip
        assert f" {letter} {text}" in said
    answers = said.partition("A table in")[0]
    assert not any(len(word) > 12 for word in re.findall(r"[a-z]+", answers))  # no "Bieieieie..."
    for letter in "ABCDEF":
        assert re.search(rf"^{letter} +\S", "\n".join(lines), re.MULTILINE)
    assert "<!DOCTYPE html>" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_demo_writes_its_report_before_it_prints(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)  # nobody reads what it prints
    command = [sys.executable, "-m", "minivllm", "demo", "--report", "report.html"]
    subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, cwd=tmp_path)
    assert "<!DOCTYPE html>" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_demo_shows_its_answers_where_no_report_can_be_written(tmp_path):
    command = [sys.executable, "-m", "minivllm", "demo", "--report", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "The capital of France is Paris" in done.stdout
    assert "Is a directory" in done.stderr
