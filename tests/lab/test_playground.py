"""The playground without a browser: its answers, and the server that takes the worker's place."""

import http.client
import inspect
import json
import os
import re
import select
import subprocess
import sys
import threading
import zipfile

import pytest
from playground_server import serving_playground

from minivllm.course.ch05.lab_schedule import schedule
from minivllm.course.playground import learn
from minivllm.course.playground.answer import answer
from minivllm.course.playground.begin import begin, questions
from minivllm.course.playground.build import zip_package
from minivllm.course.playground.presets import POLICY, PRESETS
from minivllm.course.playground.server import PlaygroundServer

HEAD = "from minivllm.scheduling.policies import SchedulingPolicy\nclass P(SchedulingPolicy):\n    "
CROWD = {"num_requests": 20, "arrivals": "together"}
YOURS = {"policy": "yours", "num_blocks": 30}


def ask(call, **fields):
    return json.loads(answer(json.dumps({"call": call, **fields})))


def run(workload=None, engines=None, **fields):
    return ask("run", workload=workload or {}, engines=engines or {"1": {}}, **fields)


def numbers(reply, name):
    """Numbers of a run by their names; of "5 of 9" the first."""
    found = reply["runs"][name]["numbers"]
    return {title: float(re.match(r"[\d.]+", str(value))[0]) for title, value, _ in found}


def preset(name):
    (found,) = (each for each in PRESETS if each["name"] == name)
    reply = run(found["workload"], found["engines"], source=POLICY)
    return numbers(reply, "1"), numbers(reply, "2")


# -- the lessons of the presets are true -----------------------------------------------------------


def test_a_prompt_that_is_not_split_stops_all_answers():
    a, b = preset("decode-stall")
    assert a["ITL, worst"] > 5 * b["ITL, worst"]


def test_small_chunks_are_good_for_decodes_and_bad_for_the_prompt():
    a, b = preset("long-prompt")
    assert a["ITL, worst"] < b["ITL, worst"] / 5
    assert a["TTFT, worst"] > b["TTFT, worst"]


def test_a_shared_table_is_computed_once():
    a, b = preset("shared-table")
    assert a["cache hits"] == 0
    assert b["cache hits"] == 9 * 640
    assert a["tokens computed"] - b["tokens computed"] == 9 * 640


def test_who_admits_too_many_preempts_and_computes_again():
    a, b = preset("thrashing")
    assert a["preemptions"] >= 5 > b["preemptions"] == 0
    assert a["tokens computed"] > 1.3 * b["tokens computed"]
    assert a["ITL, worst"] > 10 * b["ITL, worst"]
    assert b["TTFT, median"] > a["TTFT, median"]


def test_swapping_keeps_what_was_computed():
    a, b = preset("swap")
    assert a["preemptions"] == b["preemptions"] > 0
    assert a["tokens computed"] > b["tokens computed"]
    assert a["total time"] > b["total time"]


def test_the_shortest_answer_first_is_good_for_most():
    a, b = preset("own-policy")
    assert b["TTFT, median"] < 0.7 * a["TTFT, median"]


# -- figures ---------------------------------------------------------------------------------------


def test_the_timeline_is_that_of_the_run():
    """Its rows, decoded as the page does it, add up to the tokens that the steps computed."""
    reply = run({}, {"1": {}, "2": {"max_num_seqs": 2}})
    frames = ask("steps", workload={}, engines={"1": {}, "2": {"max_num_seqs": 2}})["runs"]
    for name, told in reply["runs"].items():
        timeline = told["timeline"]
        (_, _, tokens, budget), (_, _, blocks, usable) = timeline["lanes"]
        assert len(timeline["ms"]) == len(tokens) == len(frames[name]["frames"])
        assert (budget, usable) == (256, 119)
        computed = [0] * len(tokens)
        for first, kinds, prefills, *_ in timeline["rows"]:
            left = iter(prefills)
            for step, kind in enumerate(kinds, first):
                if kind in "pd":
                    computed[step] += next(left) if kind == "p" else 1
            assert next(left, None) is None
        assert computed == tokens
        assert max(blocks) == numbers(reply, name)["blocks at the peak"]
        assert sum(timeline["ms"]) <= numbers(reply, name)["total time"] + 1


def test_a_preemption_is_in_the_timeline():
    reply = run(CROWD, {"1": {"num_blocks": 30, "enable_prefix_caching": False}})
    rows = reply["runs"]["1"]["timeline"]["rows"]
    steps = [step for row in rows for step in row[3]]
    assert len(steps) == numbers(reply, "1")["preemptions"] > 0
    assert all(kinds[step - first] == "w" for first, kinds, _, out, *_ in rows for step in out)


def test_a_preset_opens_at_what_its_lesson_is_about():
    """The step exists, its numbers are there; and where the lesson says so, something happens."""
    for found in PRESETS:
        reply = run(found["workload"], found["engines"], source=POLICY)
        opens = found["opens"]
        timeline = reply["runs"][opens["engine"]]["timeline"]
        assert opens["step"] < len(timeline["ms"])
        assert set(found["numbers"]) <= {title for title, *_ in reply["runs"]["1"]["numbers"]}
        preempted = any(opens["step"] in row[3] for row in timeline["rows"])
        assert preempted == (found["name"] in ("thrashing", "swap"))


def test_a_request_has_a_row_with_its_numbers():
    reply = run({**CROWD, "shared_prefix": 100}, {"1": {"max_num_seqs": 4}})
    rows = reply["runs"]["1"]["requests"]
    assert [row[0] for row in rows] == list(range(20))
    assert {row[2] for row in rows} == {0}
    assert all(float(ttft) <= float(end) for *_, ttft, end, _ in rows)
    assert sum(row[5] for row in rows) == numbers(reply, "1")["cache hits"] > 0


def test_a_policy_that_knows_priorities_gets_some():
    reply = run(CROWD, {"1": {"policy": "priority", "max_num_seqs": 2}})
    rows = reply["runs"]["1"]["requests"]
    by_end = [row[2] for row in sorted(rows, key=lambda row: float(row[6]))]  # by TTFT
    assert by_end == sorted(by_end)
    assert set(by_end) == {0, 1, 2}


def test_a_window_makes_room_and_its_retention_decides_what_is_found():
    chats = {"num_requests": 8, "shared_prefix": 400, "min_prompt": 20, "max_prompt": 60}
    kept = {"sliding_window": 64, "prefix_cache_retention_interval": 16}
    reply = run(chats, {"1": {"sliding_window": 64}, "2": kept})
    stepped = ask("steps", workload=chats, engines={"1": {"sliding_window": 64}})["runs"]["1"]
    frames = stepped["frames"]
    assert [g["name"] for g in stepped["groups"]] == ["window 64", "full"]
    assert any(0 in row[5] for frame in frames for row in frame["rows"] if row[5])
    names = [title for title, *_ in reply["runs"]["1"]["numbers"]]
    (hits,) = (name for name in names if name.startswith("cache hits"))
    assert hits == "cache hits (windows keep only the ends of prompts)"
    assert 0 < numbers(reply, "1")[hits] < numbers(reply, "2")[hits]
    # the same memory has twice the blocks, if each is of half the layers
    crowd = {"num_requests": 12, "arrivals": "together", "min_prompt": 300, "max_prompt": 300}
    plain = {"num_blocks": 100, "enable_prefix_caching": False, "max_num_seqs": 12}
    half = plain | {"num_blocks": 199, "sliding_window": 64}
    reply = run(crowd, {"1": plain, "2": half})
    assert numbers(reply, "2")["total time"] < 0.9 * numbers(reply, "1")["total time"]


# -- bad input is a sentence -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "engine", "error"),
    [
        ({"num_requests": 61}, {}, "num_requests must be a whole number from 1 to 60, got 61."),
        ({"gap": "abc"}, {}, "gap must be a whole number from 0 to 1,000, got 'abc'."),
        ({"arrivals": "never"}, {}, "arrivals must be together or evenly or randomly, got 'never'"),
        ({"min_prompt": 200}, {}, "min_prompt must be at most max_prompt=120, got 200."),
        ({"speed": 1}, {}, "the workload has no argument 'speed'"),
        ({}, {"num_blocks": 1}, "engine 1's num_blocks must be a whole number from 2 to"),
        ({}, {"num_blocks": True}, "num_blocks must be a whole number from 2 to 1,000, got True."),
        ({}, {"sliding_window": -1}, "engine 1's sliding_window must be a whole number from 0 to"),
        ({}, {"sliding_window": 64.0}, "engine 1's sliding_window must be a whole number from 0"),
        (
            {},
            {"prefix_cache_retention_interval": 16},
            "engine 1's prefix_cache_retention_interval must be 0 without a sliding window: then "
            "every full block is kept, got 16.",
        ),
        (
            {},
            {"sliding_window": 64, "prefix_cache_retention_interval": 24},
            "engine 1's prefix_cache_retention_interval must be a multiple of block_size=16, got",
        ),
        ({}, {"policy": "best"}, "policy must be fcfs or priority or"),
        ({}, {"enable_prefix_caching": 1}, "enable_prefix_caching must be true or false, got 1."),
        ({}, {"policy": "yours"}, "source must be the code of your policy, got None."),
        ({}, {"num_blocks": 3}, "the whole KV cache holds 2"),
        ({}, {"enable_chunked_prefill": False, "max_num_batched_tokens": 9}, "no prompt is split"),
    ],
)  # fmt: skip
def test_a_setting_out_of_range(workload, engine, error):
    reply = run(workload, {"1": engine})
    assert error in reply["error"]
    assert "line" not in reply


@pytest.mark.parametrize(
    ("body", "error", "line"),
    [
        ("def key(self, request): return 1 / 0", "ZeroDivisionError: division by zero", 3),
        ("def key(self, request):\n        raise ValueError('no')", "ValueError: no", 4),
        ("def key(self, request): raise SystemExit", "SystemExit", 3),
        ("def key(self request): pass", "SyntaxError: invalid syntax", 3),
        ("def may_admit(self, running): return False", "P admits no request: 20 unfinished", None),
        ("def victim(self, running): return None", "cannot go on with what this policy", None),
        ("def __init__(self): self.x", "has no attribute 'x'", 3),
    ],
)
def test_a_policy_that_does_not_work(body, error, line):
    reply = run(CROWD, {"1": YOURS}, source=HEAD + body)
    assert error in reply["error"]
    assert reply["line"] == line


def test_what_a_policy_prints_is_told_but_not_without_end():
    body = "def may_admit(self, running):\n        print(len(running))\n        return True"
    reply = run(CROWD, {"1": YOURS}, source=HEAD + body)
    assert reply["printed"].startswith("0\n")
    reply = run(CROWD, {"1": YOURS}, source=HEAD + body.replace("len(running)", "'x' * 3000"))
    assert 3000 < len(reply["printed"]) < 7100


def test_code_without_a_policy():
    reply = run(CROWD, {"1": YOURS}, source=HEAD.splitlines()[0])
    assert reply["error"] == "define a class that extends SchedulingPolicy."


def test_a_run_that_goes_on_and_on():
    workload = {**CROWD, "num_requests": 60, "min_output": 100, "max_output": 100}
    reply = run(workload, {"1": {"max_num_seqs": 1}})
    assert re.match(r"Engine 1: after 3,000 steps \d+ of 60 requests are not done", reply["error"])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"call": "exec"}', '{"call": ["run"]}'])
def test_a_request_that_asks_for_nothing_known(text):
    assert json.loads(answer(text))["error"]


# -- labs, quizzes and exercises -------------------------------------------------------------------


def test_the_lab_is_held_to_vllms_recordings():
    assert "def my_schedule" in learn.lab("schedule")["stub"]
    source = inspect.getsource(schedule).replace("def schedule", "def my_schedule")
    reply = ask("grade_lab", name="schedule", source=source)
    assert re.match(r"passed .* vLLM's own plan in \d{4} recorded steps", reply["text"])
    wrong = source.replace("token_budget -= num_new", "pass")
    assert ask("grade_lab", name="schedule", source=wrong)["text"].startswith("FAILED")
    assert ask("grade_lab", name="schedule", source="x = 1")["error"]


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("name", ["schedule", "cap"])
def test_a_lab_says_at_how_many_steps_it_is_right(name, seed):
    lab = learn.lab(name)["stub"]
    whole = {"schedule": inspect.getsource(schedule), "cap": CAP}[name]
    whole = whole.replace("def schedule", "def my_schedule")
    part = whole.replace("num_new = min(num_tokens - num_computed, token_budget)", "num_new = 1")
    part = part.replace("num_requests > 1", "num_requests > 2")
    equal, total = ask("grade_lab", name=name, source=whole, seed=seed)["equal"]
    assert equal == total > 20
    fewer, of = ask("grade_lab", name=name, source=part, seed=seed)["equal"]
    assert 0 < fewer < of == total
    assert "equal" not in ask("grade_lab", name=name, source=lab, seed=seed)


CAP = """\
def my_cap(num_new, token_budget, long_prefill_token_threshold, num_requests):
    if 0 < long_prefill_token_threshold < num_new and num_requests > 1:
        num_new = long_prefill_token_threshold
    return min(num_new, token_budget)
"""


def test_the_page_keeps_the_readers_progress_file(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIVLLM_CACHE_ROOT", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    begin = ask("lab_progress")
    assert begin["next"] == "schedule"
    assert [line.split()[0] for line in begin["text"].splitlines()] == ["lab", *learn.LABS]
    kept = '{"passed": {"schedule": "2026-11-27"}, "peeks": {}}'
    assert ask("lab_progress", kept=kept)["next"] == "cap"
    first = ask("peek_lab", name="cap")
    assert list(first["help"]) == ["hint"]
    assert list(ask("peek_lab", name="cap", kept=first["file"])["help"]) == ["hint", "idea"]
    graded = ask("grade_lab", name="cap", source=CAP)
    assert graded["text"].startswith("passed   cap")
    done = json.loads(graded["file"])
    assert (done["passed"].keys(), done["peeks"]) == ({"schedule", "cap"}, {"cap": 2})
    # a worker that was stopped begins without files; what the page keeps is taken once more
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIVLLM_CACHE_ROOT", str(tmp_path / "other"))
    assert ask("lab_progress", kept=graded["file"])["next"] == "propose"
    assert ask("open_progress", file="my notes")["error"].startswith("the file is no progress file")
    assert ask("lab_progress")["next"] == "propose"
    assert ask("open_progress", file="{}")["next"] == "schedule"


def test_quiz_and_exercise_are_graded_as_in_the_notebooks():
    for question in learn.quiz("05"):
        told = question["verdicts"]
        assert told.keys() == question["choices"].keys()
        assert [reply["right"] for reply in told.values()].count(True) == 1
        for reply in told.values():
            assert reply["text"].startswith("right: " if reply["right"] else "not yet: ")
    for source in ("(28, 18)", "x = (28, 18)", "print(3)\n(28,\n 18)"):
        reply = ask("grade_exercise", name="ch05.batching", seed=0, source=source)
        assert "right: 10 of 28 steps saved" in reply["text"]
    reply = ask("grade_exercise", name="ch05.batching", seed=0, source="1\n1/0")
    assert (reply["error"], reply["line"]) == ("ZeroDivisionError: division by zero", 2)


WITHOUT_TORCH = """
import sys
for name in ("torch", "numpy", "transformers", "triton"):
    sys.modules[name] = None
from minivllm.course.playground import learn
from minivllm.course import labs
for _, names in learn.contents()["chapters"]:
    for name in names:
        exercise = learn._kind(name)(0)
        exercise.check(exercise.solve())
for name in learn.LABS:
    lab = getattr(labs, name)
    assert lab.verdict(lab.solution).outcome == "passed", name
"""


def test_what_is_asked_is_there_before_python():
    """A file of the page has the tasks, the quizzes and the exercises of seed 0."""
    asked = questions()
    names = [name for _, kinds in asked["chapters"] for name in kinds]
    assert list(asked["exercises"]) == names
    assert asked["exercises"]["ch05.batching"] == ask("exercise", name="ch05.batching", seed=0)
    assert asked["quizzes"].keys() == dict(asked["chapters"]).keys()
    assert asked["tasks"].keys() == asked["labs"].keys()
    assert "def my_schedule(" in asked["tasks"]["schedule"]["stub"]


def test_what_the_page_needs_at_first_is_small():
    assert len(json.dumps(begin(), separators=(",", ":"))) < 60_000


def test_every_lab_and_exercise_of_the_page_needs_no_torch():
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True, timeout=60)


# -- the package in a zip --------------------------------------------------------------------------


def test_the_zip_is_enough_and_has_no_weights(tmp_path):
    zip_package(tmp_path / "minivllm.zip")
    names = zipfile.ZipFile(tmp_path / "minivllm.zip").namelist()
    assert not [name for name in names if name.endswith((".safetensors", ".pyc"))]
    zipfile.ZipFile(tmp_path / "minivllm.zip").extractall(tmp_path / "all")
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
        f"sys.path.insert(0, {str(tmp_path / 'all')!r})\n"
        "from minivllm.course.playground.answer import answer\n"
        """print(answer('{"call": "run", "workload": {}, "engines": {"1": {}}}')[:8])"""
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == '{"printe', done.stderr


# -- the server on this machine --------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    with serving_playground() as server:
        yield server


def post(server, path, body, **headers):
    """Status and reply of a POST, as the page sends it."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    headers = {"Content-Type": "application/json", **headers}
    connection.request("POST", path, json.dumps(body), headers)
    got = connection.getresponse()
    text = got.read().decode()
    connection.close()
    return got.status, json.loads(text) if got.status == 200 else text


RUN = {"request": {"call": "run", "workload": {}, "engines": {"1": {}}}, "seconds": 20}
ENDLESS = {
    "call": "run", "workload": {}, "engines": {"1": {"policy": "yours"}},
    "source": HEAD + "def key(self, request):\n        print('still')\n        while True: pass",
}  # fmt: skip


def test_the_server_answers_stops_and_goes_on(server):
    assert "runs" in post(server, "/answer", RUN)[1]
    _, reply = post(server, "/answer", {"request": ENDLESS, "seconds": 0.5})
    assert reply == {"error": "Stopped after 0.5 seconds: it did not end.", "stopped": True}
    timer = threading.Timer(0.5, post, [server, "/stop", {}])
    timer.start()
    _, reply = post(server, "/answer", {"request": ENDLESS, "seconds": 30})
    assert reply == {"error": "Stopped.", "stopped": True}
    timer.join()
    assert "runs" in post(server, "/answer", RUN)[1]


def ask_cell(server, source, seconds=60):
    """Reply to a cell of a notebook's page."""
    request = {"call": "cell", "source": source, "number": 1}
    _, reply = post(server, "/answer", {"request": request, "seconds": seconds})
    return reply


def shown(reply):
    return [output["data"]["text/plain"] for output in reply["outputs"]]


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.system('echo hi')",
        "import os\nos.system('printf hi')",
        "import os\nos.write(1, b'hi\\n')",
        "import sys\nprint('hi', file=sys.__stdout__, flush=True)",
        "import subprocess\nsubprocess.run(['sh', '-c', 'echo hi; cat'])",
        "import os\nchild = os.fork()\nos.waitpid(child, 0) if child else 0",
        "import threading\nthreading.Timer(0.05, print, ['hi']).start()",
    ],
)
def test_what_a_cells_process_writes_is_no_reply(server, source):
    ask_cell(server, source)
    for value in range(3):
        assert shown(ask_cell(server, f"{value} + 1000")) == [str(value + 1000)]


def test_nobody_types_into_a_cell(server):
    assert ask_cell(server, "input()")["error"].startswith("EOFError")
    assert shown(ask_cell(server, "import os\nos.system('cat')")) == ["0"]


@pytest.mark.parametrize("how", ["stop", "late", "ended"])
def test_a_stopped_cells_children_end_with_it(server, tmp_path, how):
    os.mkfifo(tmp_path / "alive")
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    child = f"exec 3> {tmp_path / 'alive'}; echo begun >&3; exec sleep 1000"
    source = f"import os, subprocess\nsubprocess.Popen(['sh', '-c', {child!r}])\n"
    last = "while True: pass"
    if how == "ended":
        last = f"while not os.path.exists({str(tmp_path / 'end')!r}): pass\nos._exit(1)"
    seconds = 3 if how == "late" else 60
    ask_cell(server, "1")  # the process is there
    asked = threading.Thread(target=ask_cell, args=[server, source + last, seconds])
    asked.start()
    assert select.select([reader], [], [], 30)[0]
    assert os.read(reader, 100) == b"begun\n"
    if how == "stop":
        post(server, "/stop", {})
    (tmp_path / "end").touch()
    assert select.select([reader], [], [], 30)[0], "the child still has the pipe"
    assert os.read(reader, 100) == b""
    os.close(reader)
    asked.join()
    assert shown(ask_cell(server, "41 + 1")) == ["42"]


def test_a_cell_that_stands_still_is_stopped(server):
    still = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"
    forked = (
        "import os, time\nif not os.fork():\n    os.setsid()\n    time.sleep(9)\n    os._exit(0)\n"
        "while True: pass"
    )
    for source in (still, forked):
        assert shown(ask_cell(server, "41 + 1")) == ["42"]
        assert ask_cell(server, source, 1)["error"] == "Stopped after 1 seconds: it did not end."
    assert shown(ask_cell(server, "41 + 1")) == ["42"]


def test_a_cell_ends_with_the_server(tmp_path):
    begun = tmp_path / "begun"
    cell = f"open({str(begun)!r}, 'w').close()\nwhile True: pass"
    request = json.dumps({"call": "cell", "source": cell, "number": 1})
    code = (
        "import os, threading\n"
        "from minivllm.course.playground.process import PythonProcess\n"
        "python = PythonProcess()\n"
        f"threading.Thread(target=python.ask, args=[{request!r}, 600], daemon=True).start()\n"
        f"while not os.path.exists({str(begun)!r}): pass\n"
        "os._exit(0)"
    )
    # the cell's process has the error stream, too: only its end lets this return
    subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, timeout=60, check=True)


def test_only_the_servers_own_page_may_ask(server):
    for headers in (
        {"Origin": "http://elsewhere.example"},
        {"Host": "elsewhere.example"},
        {"Content-Type": "text/plain"},  # which a form of another page can send
    ):
        assert post(server, "/answer", RUN, **headers)[0] == 403
    own = f"http://127.0.0.1:{server.server_port}"
    assert post(server, "/answer", RUN, Origin=own)[0] == 200


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ([], 'the request must be an object with "request" and "seconds", got []'),
        (5, 'the request must be an object with "request" and "seconds", got 5'),
        ({}, 'the request must be an object with "request" and "seconds", got {}'),
        ({"request": {}}, 'an object with "request" and "seconds"'),
        ({"request": {}, "seconds": 1e9}, "seconds must be above 0 and at most 60"),
        ({"request": {}, "seconds": float("nan")}, "seconds must be above 0 and at most 60"),
        ({"request": {}, "seconds": "1"}, "seconds must be above 0 and at most 60"),
    ],
)
def test_the_server_says_what_it_cannot_read(server, body, error):
    reply = post(server, "/answer", body)[1]
    assert reply["error"].startswith("the request cannot be read: ")
    assert error in reply["error"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"[" * 100_000, "it is nested too deep"),
        (b"[" * 100_000 + b"]" * 100_000, "it is nested too deep"),
        (b'{"a":' * 100_000, "it is nested too deep"),
        (
            b'{"seconds": 20, "request": ' + b"[" * 900 + b"]" * 900 + b"}",
            "a request must be an ob",
        ),
        (b"", "Expecting value"),
        (b"\xff\xfe\xfd", "truncated data"),
        (b'{"seconds": "\xc3("}', "invalid continuation byte"),
        (b'{"seconds": 1' + b"0" * 5000 + b', "request": {}}', "Exceeds the limit (4300 digits)"),
        (b'{"seconds": Infinity, "request": {}}', "seconds must be above 0"),
        (b'{"seconds": 20, "request": NaN}', "a request must be an object, got nan"),
        (b'{"seconds": 20, "request": {"call": "\\ud800"}}', "call must be one of"),
        (
            b'{"seconds": 20, "request": {"call": "cell", "source": 5, "number": 1}}',
            "source must be",
        ),
        (
            b'{"seconds": 20, "request": {"call": "cell", "source": "", "number": []}}',
            "number must",
        ),
    ],
)
def test_a_body_of_any_bytes_is_answered(server, text, error):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request("POST", "/answer", text, {"Content-Type": "application/json"})
    got = connection.getresponse()
    assert got.status == 200
    assert error in json.loads(got.read())["error"]
    connection.close()


def test_a_port_that_cannot_be_used(server):
    with pytest.raises(ValueError, match=f"port {server.server_port} cannot be used: "):
        PlaygroundServer(server.server_port)
    with pytest.raises(ValueError, match="port must be from 0 to 65535, got 65536"):
        PlaygroundServer(65536)


def test_the_server_has_the_pages_files_and_no_others(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    for path, status, part in (
        ("/", 200, 'data-engine="local"'), ("/draw.js", 200, "unpack"), ("/../build.py", 404, ""),
    ):  # fmt: skip
        connection.request("GET", path)
        got = connection.getresponse()
        assert got.status == status
        assert part in got.read().decode()
    connection.close()
