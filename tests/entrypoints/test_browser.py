"""The page and the stepper in a real browser: ``pytest -m browser``.

Needs ``pip install -e ".[browser]"`` and Chromium, from the system or from
``playwright install chromium``. Without them these tests fail; they are never skipped.
"""

import base64
import re

import nbformat
import pytest
from jupyterlab_server import serving_lab
from traced_runs import cached, chunked, crowd, crowded, overlapped, preempting, sampled

from minivllm.lab.sim.dry_run import dry_run
from minivllm.lab.viz.draw.palette import owners_of
from minivllm.lab.viz.model.frames import frames
from minivllm.viz import block_grid, save_html, stepper

pytestmark = pytest.mark.browser


@pytest.fixture
def open_page(chromium, tmp_path):
    """Save a trace as a page and open it. In the end it must have been quiet and alone."""
    contexts, noise, requests = [], [], []

    def open_page(trace, fragment="", width=1100, scheme="light", scripts=True, **options):
        path = tmp_path / "run.html"
        save_html(trace, path, **options)
        contexts.append(
            chromium.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme,
                java_script_enabled=scripts,
            )
        )  # fmt: skip
        view = contexts[-1].new_page()
        view.on("console", lambda message: noise.append(message.text))
        view.on("pageerror", lambda error: noise.append(str(error)))
        view.on("request", lambda request: requests.append(request.url))
        view.goto(path.as_uri() + fragment)
        return view

    yield open_page
    for context in contexts:
        context.close()
    assert not noise
    assert {url.split(":")[0] for url in requests} <= {"file", "data"}
    assert {url.split("#")[0] for url in requests if url.startswith("file")} == {
        (tmp_path / "run.html").as_uri()
    }


def step_of(view) -> int:
    return int(re.match(r"step (\d+) of", view.text_content("#step"))[1])


def wait_for_step(view, step):
    from playwright.sync_api import expect

    expect(view.locator("#step")).to_have_text(re.compile(rf"^step {step} of"), timeout=20_000)


def assert_shows(view, trace, step):
    """Words, pool, tables and queues are those of ``Trace.state_at``."""
    state, owners = trace.state_at(step, "schedule"), owners_of(trace)
    assert step_of(view) == step
    frame = list(frames(trace))[step]
    words = view.locator("#words dd").all_text_contents()
    assert words == [text for text in (frame.before, frame.plan, frame.result) if text]

    ref_counts = state.ref_counts
    blocks = view.eval_on_selector_all(
        "#pool .block",
        "all => all.map(b => [Number(b.dataset.block), b.className, b.dataset.owners || ''])",
    )
    assert [block_id for block_id, _, _ in blocks] == list(range(len(blocks)))
    assert len(blocks) == trace.num_blocks
    for block_id, look, letters in blocks:
        holders = [s for s in state.sequences.values() if block_id in s.block_ids]
        assert letters.split() == [owners[s.seq_id].letter for s in holders]
        assert ("shared" in look.split()) == (ref_counts.get(block_id, 0) > 1)
        assert ("cached" in look.split()) == (block_id in state.cached and not holders)
    free = view.eval_on_selector_all(
        "#pool .cached", "all => all.map(b => [+b.dataset.block, b.dataset.was, +b.dataset.place])"
    )
    assert free == sorted(
        [block_id, owners[state.contents[block_id].seq_id].letter, place]
        for place, block_id in enumerate(state.free_queue, start=1)
        if block_id in state.contents
    )
    filled, written = view.eval_on_selector_all(
        "#pool .block.held:not(.shared)",
        "all => ['filled', 'written'].map(key => "
        "all.reduce((sum, b) => sum + Number(b.dataset[key]), 0))",
    )
    size, alone = trace.block_size, {b for b, times in ref_counts.items() if times == 1}
    expected = [0, 0]
    for seq in state.sequences.values():
        for position in range(seq.num_computed_tokens + seq.num_scheduled_tokens):
            if seq.block_ids and seq.block_ids[position // size] in alone:
                expected[position >= seq.num_computed_tokens] += 1
    assert [filled, written] == expected

    tables = view.eval_on_selector_all(
        "#tables > [data-seq]",
        "all => all.map(row => [row.dataset.seq, [...row.querySelectorAll('.entry')]"
        ".map(entry => [Number(entry.dataset.block), Number(entry.dataset.ref)])])",
    )
    assert tables == [
        [s.seq_id, [[b, ref_counts[b]] for b in s.block_ids]]
        for s in (state.sequences[seq_id] for seq_id in owners if seq_id in state.sequences)
        if s.block_ids
    ]
    queues = dict(
        zip(
            [name.split(" (")[0] for name in view.locator("#queue dt").all_text_contents()],
            [row.locator(".badge").all_text_contents() for row in view.locator("#queue dd").all()],
            strict=True,
        )
    )
    assert queues["Running"] == [owners[seq_id].letter for seq_id in state.running]
    assert queues["Waiting"] == [owners[seq_id].letter for seq_id in state.waiting]


@pytest.mark.parametrize("world", [overlapped, crowded])
def test_slots_of_plans_in_flight_are_dashed_and_unknown_tokens_dotted(open_page, world):
    """A token that is on its way has no text, though the page knows the whole run."""
    trace = world()
    view = open_page(trace)
    for step in range(trace.num_steps):
        state = trace.state_at(step, "schedule")
        expected = {"in-flight": 0, "written": 0, "unknown": 0}
        for seq in state.sequences.values():
            now = sum(number for plan, number in seq.in_flight if plan == step)
            end = seq.num_computed_tokens + seq.num_scheduled_tokens
            for position in range(seq.num_computed_tokens, end if seq.block_ids else 0):
                known = position < len(seq.token_ids)
                state_of = "written" if position >= end - now else "in-flight"
                expected[state_of if known else "unknown"] += 1
        for look, number in expected.items():
            slots = view.locator(f"#tables .slot.{look}")
            assert slots.count() == number, (step, look)
            assert all(bool(text) == (look != "unknown") for text in slots.all_text_contents())
        view.keyboard.press("ArrowRight")


@pytest.mark.parametrize("world", [chunked, preempting, sampled, cached])
def test_every_step_shows_the_state_of_the_trace(open_page, world):
    trace = world()
    view = open_page(trace)
    for step in range(trace.num_steps):
        assert_shows(view, trace, step)
        view.keyboard.press("ArrowRight")


def test_keys_step_and_stop_at_the_ends(open_page):
    trace = preempting()
    view = open_page(trace)
    last = trace.num_steps - 1
    for key, step in [
        ("ArrowLeft", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", last),
        ("ArrowRight", last), ("ArrowLeft", last - 1), ("Home", 0),
    ]:  # fmt: skip
        view.keyboard.press(key)
        assert_shows(view, trace, step)
    view.focus("#slider")  # moves by itself, and must not move twice
    for key, step in [("ArrowRight", 1), ("End", last), ("Home", 0)]:
        view.keyboard.press(key)
        assert_shows(view, trace, step)
    view.click("#forward")
    view.click("#forward")
    view.click("#back")
    assert_shows(view, trace, 1)


def test_the_address_names_the_step(open_page):
    trace = preempting()
    view = open_page(trace, "#step=7")
    assert_shows(view, trace, 7)
    view.keyboard.press("ArrowRight")
    assert view.evaluate("location.hash") == "#step=8"
    view.evaluate("location.hash = 'step=20'")
    wait_for_step(view, 20)
    assert_shows(view, trace, 20)
    view = open_page(trace, "#step=999")
    assert_shows(view, trace, trace.num_steps - 1)
    for nonsense in ("#step=-3", "#step=x", "#elsewhere"):
        assert_shows(open_page(trace, nonsense), trace, 0)


def test_play_goes_on_to_the_end_and_begins_anew(open_page):
    trace = cached()
    view = open_page(trace)
    last = trace.num_steps - 1
    view.keyboard.press("Space")
    assert view.text_content("#play") == "Pause"
    wait_for_step(view, last)
    assert view.text_content("#play") == "Play"
    view.click("#play")
    assert step_of(view) == 0
    wait_for_step(view, 1)
    view.keyboard.press("ArrowLeft")  # a step by hand stops it
    assert view.text_content("#play") == "Play"
    assert step_of(view) == 0


def test_a_click_on_the_timeline_goes_there(open_page):
    trace = chunked()
    view = open_page(trace)
    before = view.locator("#now").bounding_box()
    width = before["width"] - 3.6  # its frame stands out
    view.mouse.click(before["x"] + 1.8 + 4.5 * width, before["y"] + 20)
    assert_shows(view, trace, 4)
    assert view.locator("#now").bounding_box()["x"] == pytest.approx(before["x"] + 4 * width, abs=1)


def test_the_timeline_is_zoomed_and_stays_so_over_a_reload(open_page):
    view = open_page(preempting(), "#step=9")
    whole = view.locator("#now").bounding_box()["width"]
    view.keyboard.press("w")
    view.click("#closer")
    near = view.locator("#now").bounding_box()["width"]
    assert near > 1.8 * whole
    view.click("#tab-pool")
    view.focus("#edge")
    view.keyboard.press("ArrowUp")
    height = view.locator("#dock").bounding_box()["height"]
    view.reload()
    assert step_of(view) == 9
    assert view.locator("#now").bounding_box()["width"] == pytest.approx(near, rel=0.01)
    assert view.locator("#pool").is_visible()
    assert view.locator("#dock").bounding_box()["height"] == height
    view.click("#whole")
    assert view.locator("#now").bounding_box()["width"] == pytest.approx(whole, rel=0.01)


def test_the_pointer_is_told_step_tokens_and_blocks(open_page):
    view = open_page(preempting(), "#step=0")
    box = view.locator("#now").bounding_box()
    view.mouse.move(box["x"] + box["width"] / 2, box["y"] + 10)
    told = view.text_content(".tip")
    for part in ("step 0", "tokens: ", "blocks: ", "A", "prefill of 9"):
        assert part in told


def test_it_can_be_listened_to(open_page):
    trace = sampled()
    view = open_page(trace, "#step=1")
    tree = ""
    for tab in ("Pool", "Tables", "Step"):
        view.get_by_role("tab", name=tab).click()
        tree += view.locator("body").aria_snapshot()
    for spoken in (
        'slider "Step"', 'button "Play"', 'button "One step back"', 'button "One step forward"',
        'heading "Step by step"', 'img "Block pool: 5 of 19 blocks held', 'list "blocks of A1"',
        "logical block 0 is block 1, shared by 3", "logical block 1 is block 5, new",
        'img "Timeline. ', "4 steps",
    ):  # fmt: skip
        assert spoken in tree
    assert view.get_attribute("#words", "aria-live") == "polite"
    assert view.get_attribute("#slider", "aria-valuetext") == "step 1 of 0–3"
    view.click("#play")
    assert view.get_attribute("#words", "aria-live") == "off"


def test_without_scripts_it_still_tells_how_it_began_and_ended(open_page):
    trace = preempting()
    view = open_page(trace, scripts=False)
    first, *_, last = frames(trace)
    assert view.locator("#chart svg").is_visible()
    assert view.locator("#still").is_visible()
    assert view.locator("#still dd").all_text_contents() == [first.words, last.words]
    assert not view.locator("#live").is_visible()
    assert not open_page(trace).locator("#still").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_telephone_by_day_and_by_night(open_page, scheme):
    paper = {}
    for width in (400, 1100):
        view = open_page(crowd(), "#step=150", width=width, scheme=scheme)
        assert view.evaluate("document.documentElement.scrollWidth") == width
        paper[width] = view.evaluate("getComputedStyle(document.body).backgroundColor")
    wide = open_page(crowd(), width=1360, scheme=scheme)
    assert wide.evaluate("document.documentElement.scrollWidth") == 1360
    run, dock = wide.locator("#chart").bounding_box(), wide.locator("#dock").bounding_box()
    assert run["width"] > 1300  # the run fills the window, and the dock is below it, in view
    assert run["y"] + run["height"] <= dock["y"]
    assert dock["y"] + dock["height"] <= 900
    red = int(re.search(r"\d+", paper[400])[0])
    assert red > 200 if scheme == "light" else red < 60


def test_token_texts_cannot_break_out(open_page):
    text = "</script><b>&\"'"
    view = open_page(chunked(), "#step=1", title=text, decode=lambda token: text)
    assert view.title() == text
    assert view.text_content("h1") == text
    assert view.locator("b", has_text="&\"'").count() == 0
    assert f"A draws “{text}”" in view.text_content("#words")
    assert view.locator("#tables .slot.filled").first.text_content() == "</scr…"


def test_a_folded_page_says_so_and_finds_the_nearest_step(open_page, monkeypatch):
    monkeypatch.setattr("minivllm.lab.viz.page.page.MAX_CHARACTERS", 4000)
    trace = preempting()
    view = open_page(trace, "#step=7")
    note = view.text_content("#help")
    shown, of = map(int, re.search(r"(\d+) of (\d+) steps are shown", note).groups())
    assert of == trace.num_steps
    assert 2 < shown < of
    assert step_of(view) <= 7
    assert_shows(view, trace, step_of(view))
    view.keyboard.press("End")
    assert_shows(view, trace, trace.num_steps - 1)


# -- the stepper in a notebook ---------------------------------------------------------------------

WORLD = "[(6, 5), (9, 4), (3, 6)], num_blocks=12, block_size=4, max_num_batched_tokens=8"
CELL = f"""\
from minivllm.lab.sim.dry_run import dry_run
from minivllm.viz import save_html, stepper

stepper(dry_run({WORLD}))
"""


@pytest.fixture
def walk():
    """The widget that the notebook's cell makes."""
    return stepper(eval(f"dry_run({WORLD})", {"dry_run": dry_run}))


@pytest.fixture
def notebook(tmp_path, walk):
    """A file as it is committed: executed, and with nothing live in it."""
    data, metadata = walk.still._repr_mimebundle_()
    output = nbformat.v4.new_output("execute_result", data, metadata=metadata, execution_count=1)
    cell = nbformat.v4.new_code_cell(CELL, id="stepper", outputs=[output], execution_count=1)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    path = tmp_path / "stepper.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=kernel), path)
    return path


@pytest.mark.parametrize("saved_live", [False, True])
def test_nbconvert_shows_the_still_picture(chromium, notebook, walk, saved_live):
    from nbconvert import HTMLExporter

    if saved_live:  # from a running notebook, whose widgets are gone when it is converted
        content = nbformat.read(notebook, as_version=4)
        content.cells[0].outputs[0].data.update(walk._repr_mimebundle_()[0])
        nbformat.write(content, notebook)
    page = notebook.with_suffix(".html")
    page.write_text(HTMLExporter().from_filename(notebook)[0], encoding="utf-8")
    context = chromium.new_context(offline=True)
    view = context.new_page()
    view.goto(page.as_uri(), wait_until="domcontentloaded")
    picture = view.locator(".jp-OutputArea-output img")
    assert picture.is_visible()
    assert picture.evaluate("img => img.decode().then(() => img.naturalWidth)") > 600
    drawn = base64.b64decode(picture.get_attribute("src").split(",")[1]).decode()
    assert drawn == walk.still.svg
    context.close()


@pytest.fixture
def jupyter_lab(notebook, tmp_path):
    """Address of the notebook in a JupyterLab over its folder."""
    with serving_lab(tmp_path, tmp_path) as url:
        yield url + notebook.name


def test_in_jupyterlab_the_slider_steps(chromium, jupyter_lab, walk):
    from playwright.sync_api import expect

    context = chromium.new_context(viewport={"width": 1200, "height": 1000})
    context.set_default_timeout(120_000)
    view = context.new_page()
    view.goto(jupyter_lab)
    output = view.locator(".jp-Notebook .jp-OutputArea-output")
    # Before anything has run. (A file that the reader has not trusted is shown in characters.)
    expect(output).to_contain_text("Filmstrip, steps", timeout=120_000)
    view.get_by_text("| Idle").wait_for()  # until then a kernel is on its way
    view.click(".jp-Notebook .jp-CodeCell .cm-content")
    view.keyboard.press("Shift+Enter")
    output.locator(".widget-slider").wait_for()
    expect(output).not_to_contain_text("Filmstrip, steps")

    def expect_step(step):
        words = output.locator(".widget-html-content").first
        expect(words).to_contain_text(walk.frames[step].plan, timeout=60_000)
        pool = block_grid(walk.trace, step)
        picture = output.locator(f'img[alt="{pool.alt}"]')
        expect(picture).to_be_visible(timeout=60_000)
        drawn = base64.b64decode(picture.get_attribute("src").split(",")[1]).decode()
        assert drawn == pool.svg

    last = len(walk.frames) - 1
    expect_step(0)
    handle = output.locator(".noUi-handle")
    for key, step in [("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", last)]:
        handle.press(key)
        expect_step(step)
    output.get_by_title("one step back").click()
    expect_step(last - 1)
    handle.press("Home")
    expect_step(0)
    output.locator(".widget-play button").first.click()
    expect_step(last)
    context.close()
