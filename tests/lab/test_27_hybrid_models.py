"""Notebook 27: rules of its labs held to vLLM's recordings, its exercises, and its figure."""

from itertools import combinations

import pytest
from test_viz_figures import check_figure, chunked
from traced_runs import windowed

from minivllm.course.ch27 import forgetting, recorded_cache, rules
from minivllm.course.ch27.recorded_cache import Counted, Filled, LookedUp, walks
from minivllm.exercises import ch27
from minivllm.kv.groups.manager import HybridKVCacheManager
from minivllm.kv.kv_cache_spec import FullAttentionSpec, SlidingWindowSpec, get_kv_cache_groups
from minivllm.viz import held_blocks

SEEDS = range(5)
SHAPE = {"block_size": 16, "num_kv_heads": 4, "head_size": 64, "bytes_per_number": 4}
PAGE = 2 * 4 * 64 * 4 * 16  # bytes of a layer's part of a block


# -- the rules, and vLLM -------------------------------------------------------------------------


def test_the_rules_of_the_labs_give_what_vllm_found_and_kept():
    """Hits and junctions of every request, and after each step the blocks that have a name."""
    facts = list(walks())
    looked_up = [fact for fact in facts if isinstance(fact, LookedUp)]
    for fact in looked_up:
        assert rules.agree(fact.lookups, fact.num_tokens) == fact.recorded, fact.where
    for fact in facts:
        if isinstance(fact, Counted):
            assert fact.followed == fact.recorded, fact.where
    assert sum(fact.recorded[0] > 0 for fact in looked_up) > 20
    assert sum(fact.recorded[1] > 0 for fact in looked_up) > 5
    assert sum(isinstance(fact, Filled) for fact in facts) > 150
    assert {len(fact.kinds) for fact in looked_up} == {2, 3}


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        ("worth_keeping", lambda blocks, *args, **kwargs: list(blocks)),
        ("worth_keeping", lambda blocks, window, size, **given: rules.worth_keeping(
            blocks, window + size, size, **given)),
        ("Lookup", lambda found, window, *sizes: rules.Lookup(found, None, *sizes)),
    ],
    ids=["everything is kept", "a block too many", "windows look from the left"],
)  # fmt: skip
def test_a_wrong_rule_gives_others(rule, wrong, monkeypatch):
    monkeypatch.setattr(recorded_cache, rule, wrong)
    facts = list(walks())
    hits = [f for f in facts if isinstance(f, LookedUp)]
    counts = [f for f in facts if isinstance(f, Counted)]
    same = all(rules.agree(f.lookups, f.num_tokens) == f.recorded for f in hits)
    assert not (same and all(f.followed == f.recorded for f in counts))


def test_a_windows_hit_is_the_longest_whose_end_is_there():
    """By its definition, over all caches of six blocks."""
    for bits in range(64):
        found = [bool(bits >> i & 1) for i in range(6)]
        for window, alignment in ((2, 4), (5, 4), (6, 4), (9, 8), (14, 4), (14, 12)):
            hits = [0]
            for end in range(alignment, 25, alignment):
                first = max(0, end - window + 1) // 4
                if all(found[first : end // 4]):
                    hits.append(end)
            assert rules.window_hit(found, window, 4, alignment) == max(hits)


# -- exercises -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_are_those_of_the_engine(seed):
    exercise = ch27.grouping(seed)
    specs = {}
    for kind, number in exercise.given["layers"].items():
        spec = FullAttentionSpec(**SHAPE)
        if kind != "full":
            spec = SlidingWindowSpec(**SHAPE, sliding_window=int(kind.split()[1]))
        specs |= {f"{kind}, {i}": spec for i in range(number)}
    groups = get_kv_cache_groups([specs])
    size = max(len(group.layer_names) for group in groups)
    empty = size * len(groups) - len(specs)
    assert exercise.solve() == (size, len(groups), empty)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_fits_is_what_the_specs_say(seed):
    exercise = ch27.fit(seed)
    for num_blocks, size, num_full, num_window, window, budget, length in exercise.calls:
        shape = {**SHAPE, "block_size": size}
        full = FullAttentionSpec(**shape).max_blocks(length, budget)
        windows = SlidingWindowSpec(**shape, sliding_window=window)
        whole = num_full * full
        found = tuple(
            (num_blocks - 1)
            // (whole + num_window * min(full, windows.max_blocks(length, in_flight)))
            for in_flight in (budget, 0)
        )
        given = num_blocks, size, num_full, num_window, window, budget, length
        assert exercise.solve()(*given) == found


def test_all_choices_but_those_with_layer_3_are_measured():
    measured = forgetting.forgetting()
    windows = {window for window, _ in measured}
    for window in windows:
        for number in range(1, 5):
            for layers in combinations((0, 1, 2, 4), number):
                assert (window, layers) in measured
        assert measured[window, (3,)] < 0.7
    assert measured[96, (0, 1, 4)] >= 0.95
    assert forgetting.bytes_held(3200, 96, ()) == 200 * 5 * PAGE
    # three groups of two layers, of which one is full attention
    assert forgetting.bytes_held(3200, 96, (0, 1, 4)) == (200 + 7 + 7) * 2 * PAGE


@pytest.mark.slow
@pytest.mark.parametrize(("window", "layers"), [(96, (0, 1, 4)), (32, (2,)), (256, (3,))])
def test_what_was_measured_is_measured_again(window, layers):
    from minivllm.entrypoints.llm import LLM
    from minivllm.lab.training.evaluate import answers, is_right
    from minivllm.lab.training.suites import table_cases

    kinds = ["sliding_attention" if i in layers else "full_attention" for i in range(5)]
    llm = LLM(
        hf_overrides={"use_sliding_window": True, "sliding_window": window, "max_window_layers": 0,
                      "layer_types": kinds},
        max_model_len=2048,
    )  # fmt: skip
    cases = [
        case
        for rows in (3, 10, 30)
        for case in table_cases("usual", "forget", rows, padded=False, count=12)
    ]
    right = sum(map(is_right, cases, answers(llm, cases)))
    assert right / len(cases) == pytest.approx(forgetting.forgetting()[window, layers])


def test_bytes_held_are_those_of_the_engine():
    """Groups of the embedded model as the engine forms them, and a block of them."""
    from minivllm.entrypoints.llm import LLM

    kinds = ["sliding_attention" if i in (0, 1, 4) else "full_attention" for i in range(5)]
    llm = LLM(
        hf_overrides={"use_sliding_window": True, "sliding_window": 96, "max_window_layers": 0,
                      "layer_types": kinds},
        max_model_len=512, num_gpu_blocks_override=120, max_num_batched_tokens=64,
    )  # fmt: skip
    groups, specs = forgetting.groups_of(96, (0, 1, 4))
    manager = llm.llm_engine.scheduler.kv_manager
    assert isinstance(manager, HybridKVCacheManager)
    assert [m.spec for m in manager.managers] == [group.kv_cache_spec for group in groups]
    places = llm.llm_engine.model_runner.kv_cache.data
    assert places.nbytes == 120 * 2 * PAGE
    assert set(specs) == {f"layer {i}" for i in range(5)}


# -- the figure ----------------------------------------------------------------------------------


def test_blocks_are_drawn_as_the_groups_hold_them():
    trace = windowed({"A": 30}, windows=(9, None), num_output=12, budget=16)
    figure, again = (
        held_blocks(trace, [7, 12], title="A window stays, the rest grows") for _ in range(2)
    )
    check_figure(figure, again)
    held = [trace.state_at(step, "schedule").num_held_by_group for step in range(trace.num_steps)]
    assert held[-1] == [3, 11]
    assert max(window for window, _ in held) == 6
    assert "window 9: at most 6 of 7, 3 in the last step" in figure.svg
    assert "full: at most 11 of 12, 11 in the last step" in figure.svg


@pytest.mark.parametrize(
    ("trace", "most", "message"),
    [
        (chunked, [9], "trace must be of a model with several KV cache groups"),
        (lambda: windowed({"A": 5}), [9], "most must be 2 numbers, one a group, got"),
    ],
)
def test_held_blocks_needs_groups_and_their_limits(trace, most, message):
    with pytest.raises(ValueError, match=message):
        held_blocks(trace(), most)
