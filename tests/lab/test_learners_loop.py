"""The learner's loop: where am I, test, peek, next; and the reader's progress file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from minivllm.cli import app
from minivllm.course import loop
from minivllm.course.asking.texts import read_toml
from minivllm.course.classroom.repository import new_repository
from minivllm.course.grading import milestones
from minivllm.exercises import labs

ROOT = Path(__file__).parents[2]
CAP = """\
def my_cap(num_new, token_budget, long_prefill_token_threshold, num_requests):
    if 0 < long_prefill_token_threshold < num_new and num_requests > 1:
        num_new = long_prefill_token_threshold
    return min(num_new, token_budget)
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working directory of one's own, and a cache beside it."""
    monkeypatch.setenv("MINIVLLM_CACHE_ROOT", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def lab(*arguments):
    return CliRunner().invoke(app, ["lab", *arguments])


def noted(here):
    return json.loads((here / milestones.FILE).read_text(encoding="utf-8"))


def test_the_loop_leads_through_a_lab(here):
    shown = lab("status").output
    assert shown.startswith("allocate_slots         notebook 03   -\n")
    assert shown.endswith(f"0 of {len(labs.LABS) + 1}\nnext: allocate_slots\n")
    assert list(here.iterdir()) == []  # a look changes nothing
    assert lab("test", "cap").exit_code == 1
    passed = dict.fromkeys(("allocate_slots", "copy_on_write", "schedule"), "2026-11-27")
    (here / milestones.FILE).write_text(json.dumps({"passed": passed}))
    begun = lab("next").output
    assert begun.startswith("cap (notebook 07, about 10 minutes): Write the rule that cuts prompts")
    assert "write  my_labs/cap.py\ntest   minivllm lab test cap\n" in begun
    file = here / "my_labs" / "cap.py"
    assert "def my_cap(" in file.read_text()
    done = lab("test")
    assert (done.exit_code, done.output) == (1, "not solved yet\n")
    file.write_text(
        "def my_cap(num_new, token_budget, **_):\n    return min(num_new, token_budget)\n"
    )
    lab("next")
    assert file.read_text().count("\n") == 2  # what is written is never written over
    assert lab("test").output.startswith("not yet: ") or "FAILED" in lab("test").output
    file.write_text(CAP)
    done = lab("test", "cap")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("passed   cap")
    assert "cap" in noted(here)["passed"]
    assert "next: find_longest_cache_hit\n" in lab("status").output


def test_help_comes_in_three_looks_and_is_counted(here):
    shown = [lab("peek", "cap").output for _ in range(4)]
    assert "cap, hint (you have looked once):\nTwo limits;" in shown[0]
    assert "cap, idea (you have looked twice):\nA chunk is the least of three" in shown[1]
    assert "cap, solution (you have looked 3 times):\ndef cap(" in shown[2]
    assert "cap, solution (you have looked 4 times):\ndef cap(" in shown[3]
    assert noted(here) == {"passed": {}, "peeks": {"cap": 4}}
    assert "notebook 07   -  looked at help 4 times\n" in lab("status").output
    assert lab("peek").output.startswith("allocate_slots, hint")


def test_each_lab_has_three_different_helps():
    assert read_toml("ideas.toml").keys() == labs.LABS.keys()
    for each in labs.LABS.values():
        helps = loop.help_of(each)
        assert list(helps) == ["hint", "idea", "solution"]
        assert len(helps["idea"]) > len(" ".join(helps["hint"].split()))
        assert "def " in helps["solution"]


@pytest.mark.parametrize("name", labs.LABS)
def test_a_file_to_begin_with_can_be_imported_and_is_not_solved(name):
    file = Path("my_labs", f"{name}.py")
    file.parent.mkdir(exist_ok=True)
    file.write_text(loop.begun(labs.LABS[name]), encoding="utf-8")
    read = loop._read(file, labs.LABS[name].stub.__name__)
    assert getattr(read, "fn", read).__doc__ == labs.LABS[name].stub.__doc__


WRONG = {
    "x =": "line 1: invalid syntax",
    "1 / 0": "ZeroDivisionError in line 1, <module>: division by zero",
    "x = 1": "it has no my_cap",
    "import sys; sys.exit(3)": "SystemExit",
}


@pytest.mark.parametrize("source", WRONG)
def test_a_file_that_cannot_be_read_is_one_sentence(source, here):
    (here / "my_labs").mkdir()
    (here / "my_labs" / "cap.py").write_text(source)
    done = lab("test", "cap")
    assert done.exit_code == 1
    assert done.output.startswith("not yet: my_labs/cap.py: ")
    assert WRONG[source] in done.output
    assert done.output.count("\n") == 1


def test_a_name_that_there_is_not_is_one_sentence():
    for verb in ("test", "peek"):
        done = lab(verb, "caps")
        assert done.exit_code == 2
        assert "name must be one of allocate_slots, copy_on_write, " in done.stderr


# -- the progress file -----------------------------------------------------------------------------

BROKEN = {
    "text": "my notes",
    "empty": "",
    "list": "[1]",
    "other": '{"cap": "2026-11-27"}',
    "day": '{"passed": {"cap": "yesterday"}}',
    "number": '{"passed": {"cap": 3}}',
    "count": '{"peeks": {"cap": -1}}',
    "truth": '{"peeks": {"cap": true}}',
    "deep": "[" * 100_000,
    "bytes": b"\xff\xfe",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_gets_one_sentence_and_is_never_written_to(name, here, capsys):
    content = BROKEN[name] if isinstance(BROKEN[name], bytes) else BROKEN[name].encode()
    file = here / milestones.FILE
    file.write_bytes(content)
    for arguments in (["status"], ["next"], ["test", "cap"], ["peek", "cap"]):
        done = lab(*arguments)
        assert done.exit_code == 2, arguments
        assert f"{milestones.FILE} is no progress file (" in done.stderr
        assert done.stderr.count("\n") == 1
    names = {}
    exec(CAP, names)
    labs.cap.grade(names["my_cap"])
    passed, told = capsys.readouterr().out.splitlines()
    assert passed.startswith("passed   cap")
    assert told.startswith(f"not noted: {file} is no progress file (")
    assert [path.name for path in here.iterdir()] == [milestones.FILE]
    assert file.read_bytes() == content


def test_a_file_is_written_as_a_whole_or_not_at_all(here, monkeypatch):
    lab("peek", "cap")
    before = (here / milestones.FILE).read_bytes()

    def fails(*arguments):
        raise OSError("no space is left")

    monkeypatch.setattr(milestones.os, "replace", fails)
    done = lab("peek", "cap")
    assert done.exit_code == 2
    assert "no space is left" in done.stderr
    assert (here / milestones.FILE).read_bytes() == before


def test_the_nearest_file_is_meant_and_a_notebook_finds_it(here, monkeypatch):
    lab("peek", "cap")
    (here / "notebooks").mkdir()
    monkeypatch.chdir(here / "notebooks")
    milestones.note_passed("cap")
    assert noted(here)["passed"].keys() == {"cap"}
    assert not (here / "notebooks" / milestones.FILE).exists()


def test_without_a_file_a_notebook_notes_in_the_cache_and_the_loop_begins_with_that(here, tmp_path):
    milestones.note_passed("cap")
    assert list(here.iterdir()) == []
    assert "notebook 07   passed 2" in lab("status").output
    lab("peek", "cap")
    assert noted(here)["passed"].keys() == {"cap"}


def test_what_an_older_version_noted_is_known(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "labs.json").write_text('{"cap": "2026-10-01"}')
    assert milestones.passed() == {"cap": "2026-10-01"}
    (tmp_path / "cache" / "labs.json").write_text("broken")
    assert milestones.passed() == {}


# -- in a repository of one's own ------------------------------------------------------------------


def test_in_a_repository_the_loop_speaks_of_milestones(here, monkeypatch):
    mine = here / "my-engine"
    new_repository(mine)
    monkeypatch.chdir(mine)
    assert lab("status").output.endswith("0 of 6\nnext: pool\n")
    shown = lab("next").output
    assert shown.startswith("pool (notebook 03, about 60 minutes): Write points 1 and 3")
    assert "write  pool.py\n" in shown
    assert lab("test").exit_code == 1  # nothing is begun
    text = (mine / "pool.py").read_text()
    body = """
        table, size = self.block_tables[seq.seq_id], self.block_size
        num_tokens = seq.num_computed_tokens + num_new_tokens
        num_new = max(0, -(-num_tokens // size) - len(table.blocks))
        if num_new > self.block_pool.num_free_blocks:
            return None
        new = self.block_pool.get_new_blocks(num_new)
        table.blocks += new
        return [block.block_id for block in new]
"""
    wrong = body.replace(
        "max(0, -(-num_tokens // size) - len(table.blocks))", "num_new_tokens // size"
    )
    (mine / "pool.py").write_text(text.replace("        raise NotImplementedError\n", wrong))
    done = lab("test")
    assert done.exit_code == 1
    told = "pool      FAILED   first step 'one request', step 0: A has 1 blocks for 6 positions; it"
    assert done.output.startswith(told)
    (mine / "pool.py").write_text(text.replace("        raise NotImplementedError\n", body))
    done = lab("test")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("pool      passed   first step right in 4 small scenarios")
    assert "table     not begun\n" in done.output
    assert noted(mine)["passed"].keys() == {"pool"}
    assert lab("status").output.endswith("1 of 6\nnext: table\n")
    (mine / "plan.py").write_text("def my_schedule(:")
    assert lab("test", "pool").exit_code == 0  # a file that is broken hinders only itself
    done = lab("test", "plan")
    assert done.output == "not yet: plan.py: line 1: invalid syntax.\n"


@pytest.mark.slow
def test_the_command_runs_in_a_repository(here):
    new_repository(here / "mine")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "minivllm", "lab", "peek", "kernel"]
    done = subprocess.run(command, cwd=here / "mine", env=env, capture_output=True, text=True)
    assert done.stdout.startswith("kernel, hint (you have looked once):")
    assert done.stderr == ""
