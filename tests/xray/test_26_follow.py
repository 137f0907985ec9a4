"""Follow and attach: a file that grows, is replaced, begins again, breaks, or has ended."""

import asyncio
import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from minivllm.cli import app
from minivllm.trace.state import State
from minivllm.xray.follow import Following, follow, grown_lines
from minivllm.xray.format import ended_line

ROOT = Path(__file__).parents[2]
WAITS = ROOT / "minivllm/xray/runs/waits.jsonl.gz"
TEXT = gzip.decompress(WAITS.read_bytes()).decode()
LINES = TEXT.splitlines(keepends=True)


def going_on(*looks):
    """``go_on`` that does one of these at each look, and then ends."""
    to_come = iter(looks)

    def go_on():
        look = next(to_come, None)
        if look is not None:
            look()
        return look is not None

    return go_on


def restarted(length):
    header = json.loads(LINES[0]) | {"started": 99.0}
    return json.dumps(header) + "\n" + "".join(LINES[1:length])


@pytest.mark.parametrize("length", [20, 200], ids=["shorter", "longer"])
def test_a_restart_on_the_same_file_is_noticed(tmp_path, length):
    path, said = tmp_path / "run.jsonl", []
    path.write_text("".join(LINES[:60]))
    follow(path, said.append, going_on(lambda: path.write_text(restarted(length))))
    assert said.count("vLLM was started again") == 1
    last = max(json.loads(line)["step"] for line in LINES[1:length])
    assert said[-1].startswith(f"step {last}: ")


def test_a_line_that_cannot_be_read_costs_one_sentence(tmp_path):
    path, said = tmp_path / "run.jsonl", []
    path.write_text("".join([*LINES[:40], "\x00 rubbish\n", *LINES[41:120]]))
    follow(path, said.append, lambda: False)
    assert [text for text in said if not text.startswith("step ")] == [
        "this is no line of an X-ray: '\\x00 rubbish'."
    ]
    last = max(json.loads(line)["step"] for line in LINES[1:120])
    assert said[-1].startswith(f"step {last}: ")


def test_behind_a_gap_all_begins_with_the_state_that_is_known():
    following = Following(lambda text: None)
    news = [following.read(line) for line in [*LINES[:40], "rubbish\n", *LINES[41:60]]]
    begins = [i for i, some in enumerate(news) if some and isinstance(some[0], State)]
    assert begins == [0, 41]
    assert news[41][0].step == news[41][1].step - 1


def test_a_compressed_file_is_read_and_ends(tmp_path):
    said = []
    follow(WAITS, said.append, lambda: True)
    assert said[-1].startswith("step 304: ")
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(WAITS.read_bytes()[:5000])
    with pytest.raises(ValueError, match="cannot be read further"):
        list(grown_lines(cut, lambda: True))


def test_the_end_of_a_run_is_said(tmp_path):
    path, said = tmp_path / "run.jsonl", []
    path.write_text("".join(LINES[:60]) + ended_line())
    follow(path, said.append, lambda: False)
    assert said[-1] == "the run has ended"


def pictures_of(path, until):
    """The contents of the page for a file, up to the first that is ``until``; and the page then."""
    httpx = pytest.importorskip("httpx")
    from minivllm.xray.file_run import AttachedRun, make_app

    async def main():
        run = AttachedRun(path)
        app = make_app(run)
        contents = []
        pictures = app.state.glass.watch()
        while not contents or not until(contents[-1]):
            event = await asyncio.wait_for(anext(pictures), 60)
            contents.append(json.loads(event.removeprefix(b"data: ")))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            page = await client.get("/glass")
        app.state.glass.close()
        run.close()
        return contents, page.text

    return asyncio.run(main())


def heading(page):
    return page.partition("<h1>")[2].partition("</h1>")[0]


def test_the_page_of_a_run_that_has_ended_says_so_and_has_a_scrubber(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text("".join(LINES[:60]) + ended_line())
    contents, page = pictures_of(path, lambda content: content["ended"])
    assert "recorded, ended at step" in heading(page)
    assert 'type="range"' in page
    contents, page = pictures_of(WAITS, lambda content: content["ended"])
    assert "recorded, ended at step 304" in heading(page)
    assert "21 of 29 requests waited" in page
    assert page.count("data-row=") > 20, "who waited, and why"
    path.write_text("".join(LINES[:60]))
    last = max(json.loads(line)["step"] for line in LINES[1:60])
    contents, page = pictures_of(path, lambda content: content["frame"]["step"] == last)
    assert not contents[-1]["ended"]
    assert heading(page) == "vLLM 0.32.0 behind glass"
    assert 'id="state"' in page, "where it says how far the run is"


def test_the_page_goes_on_behind_a_line_that_cannot_be_read(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text("".join([*LINES[:150], "rubbish\n", *LINES[151:]]))
    contents, _ = pictures_of(path, lambda content: content["frame"]["step"] == 304)
    assert contents[-1]["numbers"]["running"] >= 0


def test_the_page_of_a_file_whose_oldest_steps_were_dropped(tmp_path):
    from minivllm.xray.truncate import drop_oldest

    path = tmp_path / "run.jsonl"
    path.write_text(TEXT)
    drop_oldest(str(path), len(TEXT) // 3)
    contents, _ = pictures_of(path, lambda content: content["frame"]["step"] == 304)
    assert contents


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--port", "99999"], "'--port': Input should be less than or equal to 65535"),
        (["--port", "-1"], "'--port': Input should be greater than or equal to 0"),
    ],
)
def test_a_port_that_cannot_be_is_one_sentence(arguments, sentence):
    done = CliRunner().invoke(app, ["glass", "--attach", str(WAITS), *arguments])
    assert (done.exit_code, sentence in " ".join(done.output.split())) == (2, True), done.output
