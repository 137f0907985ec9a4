"""The labs that are functions: solutions pass, typical mistakes are told, nothing is given away."""

import importlib.util
import inspect
import math
import re

import pytest
from cuda_stand_ins import pretend_no_gpu

from minivllm.course.grading import milestones
from minivllm.course.grading.recorded_steps import recorded_steps
from minivllm.exercises import labs

PLAIN = [lab for lab in labs.FUNCTION_LABS.values() if lab.notebook != "10"]  # no kernels


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIVLLM_CACHE_ROOT", str(tmp_path))
    for lab in labs.FUNCTION_LABS.values():
        lab._misses.clear()


@pytest.fixture(params=PLAIN, ids=lambda lab: lab.name)
def lab(request):
    return request.param


def test_a_solution_passes_and_is_not_counted(lab, capsys):
    for unsolved in (lab.stub, None):
        lab.grade(unsolved)
        assert capsys.readouterr().out == "not solved yet\n"
    lab.grade(lab.solution)
    assert capsys.readouterr().out.startswith(f"passed   {lab.name}")
    assert milestones.passed() == {}
    assert inspect.getsource(lab.stub) in repr(lab)
    assert f"Difficulty {lab.difficulty} of 5, about {lab.minutes} minutes." in " ".join(
        repr(lab).replace("\n# ", " ").split()
    )
    assert lab.show_help()._repr_mimebundle_()["text/html"].count("<details>") == 2


@pytest.mark.slow
def test_a_readers_function_is_counted(lab, capsys):
    def mine(*args, **kwargs):
        return lab.solution(*args, **kwargs)

    mine.__name__ = lab.stub.__name__
    labs.grade(mine)
    assert milestones.passed().keys() == {lab.name}
    capsys.readouterr()
    labs.progress()
    printed = capsys.readouterr().out
    assert printed.count("passed 2") == 1
    assert printed.endswith(f"1 of {len(labs.MILESTONES)}\n")


@pytest.mark.slow
def test_another_seed_is_another_lot_of_inputs(lab, capsys):
    called = {0: set(), 1: set()}
    for seed, inputs in called.items():

        def spy(first, *args, inputs=inputs, **kwargs):
            if lab.name == "tool_stream":  # it is given an iterator
                first = list(first)
            inputs.add(repr((first, args, kwargs)))
            first = iter(first) if lab.name == "tool_stream" else first
            return lab.solution(first, *args, **kwargs)

        lab.grade(spy, seed=seed)
        assert capsys.readouterr().out.startswith(f"passed   {lab.name}")
    assert len(called[1] - called[0]) >= (4 if lab.name == "merge" else 50)
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, got -1"):
        lab.grade(lab.solution, seed=-1)


@pytest.mark.parametrize("nonsense", [3, "schedule", int, lambda *args, **kwargs: "?"])
def test_what_is_no_answer_is_told_so(lab, nonsense, capsys):
    lab.grade(nonsense)
    assert capsys.readouterr().out.startswith("FAILED")


SCHEDULE, CAP, MERGE, TOP_P, MASK, JOIN, QUANTILE, SEGMENTS = (
    inspect.getsource(labs.FUNCTION_LABS[name].solution)
    for name in ("schedule", "cap", "merge", "top_p", "mask", "join", "quantile", "segments")
)
MISTAKES = {
    "waiting ones overtake": (SCHEDULE, "            break\n", "            continue\n"),
    "more run than may": (SCHEDULE, "num_running == max_num_seqs", "False"),
    "no room is looked for": (SCHEDULE, "num_blocks(num_tokens) <= num_free_blocks", "True"),
    "the budget is forgotten": (SCHEDULE, "num_computed, token_budget)", "num_computed, 10**6)"),
    "cut though no other request is there": (CAP, " and num_requests > 1", ""),
    "the threshold is forgotten": (CAP, "num_new = long_prefill_token_threshold", "pass"),
    "a mean": (MERGE, "(lse - lse.max()).exp()", "(lse * 0).exp()"),
    "no maximum": (MERGE, "(lse - lse.max())", "lse"),
    "one too few": (TOP_P, "better >= top_p", "better + probs > top_p"),
    "the best one may go": (TOP_P, "better >= top_p", "probs < 1 - top_p"),
    "the last one wins": (JOIN, "if not joins", "if True"),
    "what is old comes again": (JOIN, "delta and isinstance(pending", "isinstance(pending"),
    "the end is forgotten": (JOIN, 'output["finish_reason"]', 'pending["finish_reason"]'),
    "the bucket's bound": (QUANTILE, "low + (float(bound) - low) * (q * total - below) / "
                           "(count - below)", "float(bound)"),
    "one too far": (QUANTILE, "count >= q * total", "count > q * total"),
    "not from zero": (QUANTILE, "low, below = 0.0, 0", "low, below = float(min(buckets)), 0"),
    "rows without adapter": (SEGMENTS, " if slot >= 0]", "]"),
    "no end of the last segment": (SEGMENTS, "[*starts, len(order)]", "starts"),
    "the batch's order": (SEGMENTS, "sorted(rows, key=lambda row: slots[row])", "rows"),
    "ties in no order": (TOP_P, "logits.argsort(descending=True, stable=True)",
                         "logits.flip(0).argsort(descending=True).neg() + len(logits) - 1"),
    "no end": (MASK, " | set(stop_token_ids) if accepting[state] else allowed", ""),
    "an end anywhere": (MASK, "if accepting[state] else allowed", ""),
    "only the first byte": (MASK, "for byte in token:", "for byte in token[:1]:"),
    "a stop token is no text": (MASK, "if token is not None and",
                                "if token is not None and i not in stop_token_ids and"),
    "always from the start": (MASK, "at = state", "at = 0"),
}  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_and_its_value_told_only_the_second_time(name, seed, capsys):
    source, right, wrong = MISTAKES[name]
    assert source.count(right) == 1
    which = source.split("(")[0].removeprefix("def ")
    lab = labs.FUNCTION_LABS[which]
    names = dict(lab.solution.__globals__)
    exec(source.replace(right, wrong), names)
    lab.grade(names[which], seed=seed)
    first = capsys.readouterr().out
    assert first.startswith(f"FAILED   {which}")
    assert "is right" not in first
    lab.grade(names[which], seed=seed)
    second = capsys.readouterr().out
    assert second.startswith(first.rstrip(".\n"))
    assert second.endswith("is right.\n")
    assert milestones.passed() == {}


def test_a_wrong_plan_is_shown_the_state_that_it_was_made_from(capsys):
    labs.schedule.grade(lambda *given, **limits: {})
    out = capsys.readouterr().out
    for line in ("running ", "waiting ", "free ", "budget "):
        assert f"\n    {line}" in out


def test_who_raises_is_told_where(capsys):
    labs.cap.grade(lambda *args, **kwargs: 1 // 0)
    assert "ZeroDivisionError in line" in capsys.readouterr().out


def test_a_step_of_a_recording_has_what_it_needs():
    steps = list(
        recorded_steps(
            enable_prefix_caching=False, enable_chunked_prefill=True, long_prefill_token_threshold=0
        )
    )
    assert len(steps) > 1000
    assert any(step.waiting and len(step.plan) > 1 for step in steps)
    for step in steps:
        assert sum(step.plan.values()) <= step.config["max_num_batched_tokens"]
        blocks = sum(
            math.ceil(computed / step.config["block_size"]) for _, computed in step.running.values()
        )
        assert blocks + step.num_free_blocks == step.config["num_gpu_blocks"] - 1


# -- the kernel, and the project -----------------------------------------------------------------

KERNEL_MISTAKES = {
    "the sums do not shrink": ("l_i * alpha", "l_i", "and l_i was not multiplied by"),
    "the values do not shrink": ("acc * alpha[:, None]", "acc", "and acc was not multiplied by"),
    "minus infinity less itself": ("tl.where(m_new == float(\"-inf\"), 0.0, m_new)",
                                   "m_new", "hides the whole first tile: some rows are NaN"),
}  # fmt: skip


def kernel_part(tmp_path, right="", wrong=""):
    """The solution as a reader's own, in a file, since Triton reads sources; or with a mistake."""
    source = inspect.getsource(labs.online_softmax.solution.fn)
    assert source.count(right) == 1 or not right
    source = source.replace(right, wrong).replace("def online_softmax", "def my_online_softmax")
    path = tmp_path / "mine.py"
    path.write_text("import triton\nimport triton.language as tl\n\n" + source)
    spec = importlib.util.spec_from_file_location("mine", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.my_online_softmax


@pytest.mark.parametrize("name", KERNEL_MISTAKES)
def test_a_mistake_in_a_kernel_is_found(name, tmp_path, capsys):
    right, wrong, told = KERNEL_MISTAKES[name]
    labs.grade(kernel_part(tmp_path, right, wrong))
    assert told in capsys.readouterr().out


def test_a_kernel_part_that_is_not_written_yet(tmp_path, capsys):
    source = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n" + inspect.getsource(
        labs.online_softmax.stub
    )
    path = tmp_path / "stub.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("stub", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    labs.grade(module.my_online_softmax)
    assert capsys.readouterr().out == "not solved yet\n"


def test_a_kernel_part_on_a_machine_that_cannot_run_it(monkeypatch, capsys):
    monkeypatch.delenv("TRITON_INTERPRET")
    pretend_no_gpu(monkeypatch)
    labs.online_softmax.grade(labs.online_softmax.solution)
    assert "set TRITON_INTERPRET=1 before" in capsys.readouterr().out


def test_a_kernel_part_without_triton_above_it_is_told_so(capsys):
    labs.grade(labs.online_softmax.stub)
    assert "put @triton.jit above the function" in capsys.readouterr().out


@pytest.mark.slow
def test_a_mini_engine_of_right_pieces_passes(tmp_path, capsys):
    labs.mini_engine(
        pool=labs.allocate_slots.solution, table=labs.copy_on_write.solution,
        cache=labs.find_longest_cache_hit.solution, plan=labs.schedule.solution,
        kernel=kernel_part(tmp_path),
    )  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    assert all("passed" in line for line in lines[:-1])
    counts = re.findall(r"\d+(?:,\d{3})*", lines[-1])
    assert counts[0] == counts[1] == "60"
    assert counts[2] == counts[3] == counts[4]
    assert counts[4:7] == counts[7:10]  # what it costs is what vLLM's costs
    assert milestones.passed().keys() == {"mini_engine"}


@pytest.mark.slow
def test_a_mini_engine_says_which_piece_is_missing(capsys):
    labs.mini_engine(
        pool=labs.allocate_slots.solution, table=labs.copy_on_write.solution,
        cache=labs.find_longest_cache_hit.stub,
        plan=labs.schedule.stub, kernel=None,
    )  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["3", "schedule", "not", "solved", "yet"]
    assert lines[3].split() == ["4", "prefix", "cache", "not", "solved", "yet"]
    assert lines[-2].endswith("not run: first mend 3 of 5")
    whose = "scoreboard         pool, table: yours; plan, cache, kernel: ours. "
    assert lines[-1].startswith(f"{whose}60 of 60 recordings and ")
    labs.mini_engine(pool=int, table=None, cache=None, plan=None, kernel=None)
    assert "pool must be a class that extends KVCacheManager" in capsys.readouterr().out
    assert milestones.passed() == {}
