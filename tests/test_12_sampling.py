"""The sampler against slow references, and seeds that do not mind their neighbours."""

import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minivllm import SamplingParams
from minivllm.engine.oracle import choose
from minivllm.sampling.sampler import Sampler, draw, filtered_probs


def slow_probs(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    """The definition, one token at a time."""
    scaled = [x / temperature for x in logits]
    order = sorted(range(len(scaled)), key=lambda i: -scaled[i])
    if 0 < top_k < len(order):
        worst = scaled[order[top_k - 1]]
        order = [i for i in order if scaled[i] >= worst]
    weights = {i: math.exp(scaled[i] - scaled[order[0]]) for i in order}
    total = sum(weights.values())
    kept, mass = [], 0.0
    for i in order:
        if kept and mass >= top_p:
            break
        kept.append(i)
        mass += weights[i] / total
    norm = sum(weights[i] for i in kept)
    return [weights[i] / norm if i in kept else 0.0 for i in range(len(logits))]


rows = st.lists(
    st.tuples(
        st.permutations([-9.0, -3.0, -1.0, 0.0, 0.5, 1.25, 2.0, 6.0]),
        st.sampled_from([0.02, 0.5, 1.0, 3.0]),
        st.integers(-1, 10).filter(lambda k: k != 0),
        st.sampled_from([0.001, 0.3, 0.77, 0.95, 1.0]),
    ),
    min_size=1,
    max_size=5,
)


@settings(deadline=None)
@given(rows)
def test_filters_equal_their_definition_in_any_mix(rows):
    params = [SamplingParams(temperature=t, top_k=k, top_p=p) for _, t, k, p in rows]
    probs = filtered_probs(torch.tensor([row[0] for row in rows]), params)
    for got, (logits, t, k, p) in zip(probs.tolist(), rows, strict=True):
        assert got == pytest.approx(slow_probs(list(logits), t, k, p), abs=1e-9)


def test_ties_at_the_kth_place_are_kept():
    probs = filtered_probs(torch.tensor([[1.0, 2.0, 1.0, 0.0]]), [SamplingParams(top_k=2)])
    assert (probs > 0).tolist() == [[True, True, True, False]]


def test_ties_do_not_widen_top_p():
    probs = filtered_probs(torch.zeros(1, 8), [SamplingParams(top_p=0.5)])
    assert probs.tolist() == [[0.25] * 4 + [0] * 4]


def test_repr_says_what_differs():
    assert repr(SamplingParams(max_tokens=5)) == "SamplingParams(max_tokens=5)"


def test_the_best_token_always_stays():
    probs = filtered_probs(torch.tensor([[0.0, 0.1, 0.0]]), [SamplingParams(top_p=1e-9)])
    assert probs.tolist() == [[0, 1, 0]]


def test_a_draw_inverts_the_cumulative_distribution():
    probs = torch.tensor([[0.25, 0.0, 0.5, 0.25]], dtype=torch.float64)
    for number, token in ((0.0, 0), (0.2499, 0), (0.25, 2), (0.7499, 2), (0.75, 3), (0.9999999, 3)):
        assert draw(probs, torch.tensor([number], dtype=torch.float64)).item() == token


def test_no_number_falls_beyond_the_last_token():
    probs = torch.full((1, 3), 1 / 3, dtype=torch.float64) * (1 - 1e-12)
    number = torch.tensor([1 - 2**-53], dtype=torch.float64)
    assert draw(probs, number).item() == 2


def test_frequencies_follow_the_distribution():
    """Chi-square over 20,000 draws; 20.5 is the 0.1 % point for 5 degrees of freedom."""
    params = SamplingParams(temperature=0.7, top_k=6, seed=1)
    logits = torch.tensor([[2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -9.0, -9.5]])
    exact = filtered_probs(logits, [params])[0]
    n, rng = 20_000, Random(1)
    numbers = torch.tensor([rng.random() for _ in range(n)], dtype=torch.float64)
    counts = torch.bincount(draw(exact.expand(n, -1), numbers), minlength=8)
    assert counts[6:].tolist() == [0, 0]
    chi_square = ((counts - n * exact).square() / (n * exact))[:6].sum().item()
    assert chi_square < 20.5


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 9))
def test_sampler_equals_the_oracles_choice_beside_any_neighbours(seed, temperature, top_k):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 50, generator=generator) * 3
    params = [
        SamplingParams(temperature=temperature, top_k=top_k, top_p=0.9),
        SamplingParams(temperature=0),
        SamplingParams(temperature=2.0),
        SamplingParams(temperature=1.0, top_p=0.5),
    ]
    together = Sampler()(logits, params, [Random(seed + i) for i in range(4)]).token_ids
    for i in range(4):
        alone = Sampler()(logits[i : i + 1], [params[i]], [Random(seed + i)]).token_ids
        token, margin = choose(logits[i], params[i], Random(seed + i))
        assert together[i] == alone[0]
        assert together[i] == token or margin < 1e-9


def test_a_greedy_row_takes_no_number_from_its_generator():
    generator = Random(3)
    Sampler()(torch.zeros(1, 4), [SamplingParams(temperature=0)], [generator])
    assert generator.random() == Random(3).random()


def test_logprobs_are_the_raw_models():
    logits = torch.randn(3, 30, generator=torch.Generator().manual_seed(0)) * 4
    params = [
        SamplingParams(temperature=0.4, top_k=3, logprobs=2),
        SamplingParams(),
        SamplingParams(temperature=0, logprobs=0),
    ]
    out = Sampler()(logits, params, [Random(i) for i in range(3)])
    assert sorted(out.logprobs) == [0, 2]
    exact = logits.log_softmax(-1)
    for row, k in ((0, 2), (2, 0)):
        ids, values, rank = out.logprobs[row]
        order = exact[row].argsort(descending=True).tolist()
        assert ids == [out.token_ids[row], *order[:k]]
        assert values == pytest.approx(exact[row][ids].tolist())
        assert rank == 1 + order.index(ids[0])


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("temperature", -0.1, "a number of at least 0"),
        ("temperature", float("nan"), "a number of at least 0"),
        ("temperature", "hot", "a number of at least 0"),
        ("top_p", 0, "above 0 and at most 1"),
        ("top_p", 1.01, "above 0 and at most 1"),
        ("top_k", -2, "at least 1, or 0 or -1"),
        ("top_k", 1.5, "at least 1, or 0 or -1"),
        ("seed", 0.5, "at least 0, or None"),
        ("seed", -2, "at least 0, or None"),
        ("min_p", 0.1, "0.0 in minivllm"),
        ("skip_special_tokens", "no", "True or False"),
        ("max_tokens", 0, "at least 1"),
        ("max_tokens", -3, "at least 1"),
        ("n", 0, "1"),
        ("stop", "", "non-empty string"),
        ("stop", ["a", 3], "non-empty string"),
        ("stop_token_ids", 7, "a list of token ids"),
        ("ignore_eos", 1, "True or False"),
    ],
)
def test_a_value_out_of_range_is_named(name, value, allowed):
    with pytest.raises(ValueError, match=f"^{name} must be .*{allowed}.*, got "):
        SamplingParams(**{name: value})


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"no argument 'temprature'; did you mean 'temperature'\?"):
        SamplingParams(temprature=1)


def test_stop_strings_need_text():
    with pytest.raises(ValueError, match="detokenize=False"):
        SamplingParams(stop="x", detokenize=False)


def test_a_tiny_temperature_is_raised_with_a_warning(capsys):
    assert SamplingParams(temperature=0.005).temperature == 0.01
    assert "0.005 is so small" in capsys.readouterr().out
    assert SamplingParams(temperature=1e-6).greedy
