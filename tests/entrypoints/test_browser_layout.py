"""Layout of the report page and of the glass page at five widths: ``pytest -m browser``."""

import threading
from pathlib import Path

import pytest
from axe import serious
from http_server import serving
from traced_runs import cached, crowd, preempting, sampled

from minivllm.viz import save_html

pytestmark = pytest.mark.browser
WIDTHS = (400, 800, 1180, 1440, 1920)
FAULTS = (Path(__file__).parents[1] / "page_layout.js").read_text()
SECONDS = 20_000  # milliseconds


def assert_well_laid_out(view, width):
    """Look at the page by day and by night; a page that follows its size has a moment to do so."""
    view.set_viewport_size({"width": width, "height": 900})
    for scheme in ("light", "dark"):
        view.emulate_media(color_scheme=scheme)
        view.wait_for_timeout(60)
        faults = view.evaluate(FAULTS)
        assert not faults, "\n".join(faults)


@pytest.fixture
def view(chromium):
    page = chromium.new_page()
    yield page
    page.close()


# -- the report ------------------------------------------------------------------------------------

RUNS = {"preempting": preempting, "sampled": sampled, "cached": cached, "crowd": crowd}


def answers(trace):
    """Outputs of a run whose tokens are no model's."""
    from minivllm.outputs import CompletionOutput, RequestOutput

    text = " I am the tiny language model that is embedded in minivllm."
    return [
        RequestOutput(
            request_id=name, prompt=f"Tell me who you are, {name}.", prompt_token_ids=[1, 2, 3],
            prompt_logprobs=None,
            outputs=[CompletionOutput(0, text, [4, 5, 6], finish_reason="stop")], finished=True,
        )
        for name in trace.request_ids[:8]
    ]  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", RUNS)
def test_the_report_at_its_beginning_and_in_the_middle(view, tmp_path, name, width):
    trace = RUNS[name]()
    save_html(trace, tmp_path / "run.html", outputs=answers(trace))
    view.goto((tmp_path / "run.html").as_uri())
    assert_well_laid_out(view, width)
    view.evaluate(f"location.hash = 'step={trace.num_steps // 2}'")
    assert_well_laid_out(view, width)


@pytest.fixture(scope="module")
def demo_report(tmp_path_factory):
    """The page that ``minivllm demo`` writes."""
    from minivllm.entrypoints.demo import run_demo

    path = tmp_path_factory.mktemp("demo") / "report.html"
    run_demo(path)
    return path.as_uri()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_report_of_the_demo_fits(view, demo_report, width):
    view.goto(demo_report)
    for step in (0, 25):
        view.evaluate(f"location.hash = 'step={step}'")
        assert_well_laid_out(view, width)
    assert view.evaluate(LETTERS) >= (9 if width == WIDTHS[0] else 10.5)
    chart = view.locator("#chart")
    assert chart.evaluate("box => box.scrollWidth <= box.clientWidth")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_report_without_scripts(chromium, tmp_path, width):
    save_html(preempting(), tmp_path / "run.html")
    view = chromium.new_context(java_script_enabled=False).new_page()
    view.goto((tmp_path / "run.html").as_uri())
    assert_well_laid_out(view, width)
    view.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_the_report(view, tmp_path, scheme):
    save_html(preempting(), tmp_path / "run.html", outputs=answers(preempting()))
    view.emulate_media(color_scheme=scheme)
    view.goto((tmp_path / "run.html").as_uri() + "#step=5")
    assert not serious(view)


@pytest.fixture(scope="module")
def xray_page(tmp_path_factory):
    """The X-ray page of the shipped run."""
    from minivllm.xray import report
    from minivllm.xray.command import write_pages
    from minivllm.xray.shipped import shipped_run

    folder = tmp_path_factory.mktemp("xray")
    write_pages(report(shipped_run()), folder)
    return (folder / "xray.html").as_uri()


LETTERS = """() => {
  const says = each => [...each.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  const all = [...document.querySelectorAll("#chart text, #pool *, #tables *")];
  return Math.min(...all.filter(each => each.checkVisibility() && says(each))
    .map(each => parseFloat(getComputedStyle(each).fontSize)));
}"""


@pytest.mark.parametrize("width", WIDTHS)
def test_the_workbench_fits_the_window_and_can_be_read(view, tmp_path, xray_page, width):
    view.set_viewport_size({"width": width, "height": 900})
    save_html(crowd(), tmp_path / "run.html", outputs=answers(crowd()))
    for address in (xray_page, (tmp_path / "run.html").as_uri()):
        view.goto(address)
        assert view.evaluate("document.documentElement.scrollHeight") <= 900
        for tab in view.get_by_role("tab").all():
            tab.click()
            assert view.evaluate(LETTERS) >= 10.5
        dock = view.locator("#dock").bounding_box()
        assert dock["y"] + dock["height"] <= 900


def test_the_xray_page_says_who_waited_and_why_without_scrolling(view, xray_page):
    view.set_viewport_size({"width": 1440, "height": 900})
    view.goto(xray_page)
    assert "21 of 29 requests waited" in view.text_content("#summary")
    rows = view.locator("#waits tbody tr")
    assert rows.count() == 21
    box = rows.nth(2).bounding_box()
    assert box["y"] + box["height"] <= 900
    assert "blocks 64, max_num_seqs 27" in rows.first.text_content()
    rows.first.get_by_role("button").press("Enter")
    assert view.locator("#waits .chosen").count() == 1
    letter = rows.first.locator("th").text_content()
    chosen, name = (
        view.locator(path).bounding_box()
        for path in ("#chart .chosen", f"#chart .letter:text-is('{letter}')")
    )
    assert chosen["y"] <= name["y"] + name["height"] / 2 <= chosen["y"] + chosen["height"]


# -- behind glass ----------------------------------------------------------------------------------

PROMPTS = ("The capital of France is", "Once upon a time there was a king who had a secret, and so")


@pytest.fixture(scope="module")
def server():
    with serving("--glass", "--num-gpu-blocks-override", "61", "--block-size", "16",
                 "--max-num-seqs", "6") as running:  # fmt: skip
        yield running


@pytest.fixture(scope="module")
def glass(chromium, server):
    page = chromium.new_page()
    page.goto(f"{server.url}/glass")
    page.locator("#numbers dd").first.wait_for(timeout=SECONDS)
    yield page
    page.close()


def wait_for_number(view, name, number):
    from playwright.sync_api import expect

    shown = view.locator("#numbers div", has_text=name).locator("dd")
    expect(shown).to_have_text(str(number), timeout=SECONDS)


def complete(server, prompt):
    with server.client() as client:
        body = {"prompt": prompt, "max_tokens": 60, "n": 2, "ignore_eos": True}
        client.post("/v1/completions", json=body)


@pytest.fixture(scope="module")
def busy(glass, server):
    """The page held still while it and other clients are answered, and two requests wait."""
    glass.click("#pause")
    glass.locator("#state", has_text="paused").wait_for(timeout=SECONDS)
    glass.fill("#n", "2")
    glass.fill("#text", "What is the capital of France? Say it slowly, and then once more.")
    glass.press("#text", "Enter")
    threads = []
    for number, prompt in enumerate(PROMPTS * 2, start=1):
        wait_for_number(glass, "waiting", number)
        threads.append(threading.Thread(target=complete, args=(server, prompt), daemon=True))
        threads[-1].start()
    wait_for_number(glass, "waiting", 5)
    for step in range(1, 25):
        glass.click("#one-step")
        wait_for_number(glass, "steps", step)
    yield glass
    glass.click("#resume")
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("width", WIDTHS)
def test_glass_before_the_first_request(glass, width):
    assert_well_laid_out(glass, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_glass_while_it_is_busy(busy, width):
    assert_well_laid_out(busy, width)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_behind_glass(busy, scheme):
    busy.emulate_media(color_scheme=scheme)
    assert not serious(busy)
