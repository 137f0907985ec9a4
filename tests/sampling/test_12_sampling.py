"""The sampler against a slow reference."""

import math
from dataclasses import replace

import pytest
import torch
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st
from sampling_draws import CRITICAL, LOGITS, VOCAB, chi_square

from minivllm import SamplingParams
from minivllm.sampling import filters
from minivllm.sampling.metadata import SamplingMetadata, SamplingState
from minivllm.sampling.reference import choose, filter_logits, process_logits
from minivllm.sampling.sampler import Sampler, sample_from_cdf


def batch(*rows, vocab_size=VOCAB) -> SamplingMetadata:
    """Each row is params, or params with a prompt, an output and a seed."""
    states = []
    for row in rows:
        params, prompt, output, seed = row if isinstance(row, tuple) else (row, [0], [], 0)
        states.append(SamplingState(params, seed, [*prompt, *output], len(prompt)))
    return SamplingMetadata(states, vocab_size, torch.device("cpu"))


def probs_of(logits, *params):
    """Distributions from which rows with these logits and params are drawn."""
    logits = torch.tensor(logits)
    return batch(*params, vocab_size=logits.shape[1]).filters.probs(logits)


def processed(logits: torch.Tensor, metadata: SamplingMetadata) -> torch.Tensor:
    logits = logits.clone()
    for processor in metadata.processors:
        processor.apply(logits)
    return logits


# -- against the reference ---------------------------------------------------------------------

ids = st.integers(0, VOCAB - 1)
few_ids = st.lists(ids, max_size=5)


def seldom(strategy, off):
    """The parameter is left off in most rows: a mixed batch."""
    return st.one_of(st.just(off), st.just(off), strategy)


@st.composite
def a_row(draw_from):
    """Params as the processor leaves them, with a prompt, an output and a seed."""
    penalty = st.sampled_from([-1.5, 0.5, 2.0])
    params = SamplingParams(
        presence_penalty=draw_from(seldom(penalty, 0.0)),
        frequency_penalty=draw_from(seldom(penalty, 0.0)),
        repetition_penalty=draw_from(seldom(st.sampled_from([0.5, 1.3, 3.0]), 1.0)),
        temperature=draw_from(st.sampled_from([0.0, 0.02, 0.7, 1.0, 4.0])),
        top_p=draw_from(seldom(st.sampled_from([1e-9, 0.3, 0.77, 0.95]), 1.0)),
        top_k=draw_from(seldom(st.integers(1, VOCAB + 2), 0)),
        min_p=draw_from(seldom(st.sampled_from([0.01, 0.2, 1.0]), 0.0)),
        min_tokens=draw_from(st.integers(0, 4)),
        stop_token_ids=draw_from(few_ids),
        logit_bias=draw_from(seldom(st.dictionaries(ids, st.floats(-5, 5), max_size=4), None)),
        # at least one token that nothing below can forbid
        allowed_token_ids=draw_from(seldom(few_ids.map(lambda x: [*x, VOCAB]), None)),
    )
    params.bad_words_token_ids = draw_from(
        seldom(st.lists(st.lists(ids, min_size=1, max_size=3), max_size=3), [])
    )
    return params, draw_from(few_ids), draw_from(few_ids), draw_from(st.integers(0, 99))


@pytest.mark.slow
@examples(150)
@given(st.lists(a_row(), min_size=1, max_size=4), st.integers(0, 10_000))
def test_sampler_equals_the_reference_in_any_mix(rows, seed):
    """The vocabulary has one token more, which is never forbidden."""
    logits = torch.randn(len(rows), VOCAB + 1, generator=torch.Generator().manual_seed(seed)) * 3
    metadata = batch(*rows, vocab_size=VOCAB + 1)
    got = processed(logits, metadata)
    for row, (params, prompt, output, _) in enumerate(rows):
        want = process_logits(logits[row].tolist(), params, prompt, output)
        assert got[row].tolist() == pytest.approx(want, abs=1e-5)
        if not params.greedy:
            probs, margin = filter_logits(got[row].tolist(), params)
            index = metadata.random_rows.index(row)
            full = metadata.filters.probs(got[metadata.random_rows])[index].tolist()
            if margin > 1e-9:
                assert full == pytest.approx([probs.get(i, 0) for i in range(VOCAB + 1)], abs=1e-9)
    chosen = Sampler()(logits, metadata).token_ids.tolist()
    for row, (params, prompt, output, own_seed) in enumerate(rows):
        want, margin = choose(logits[row].tolist(), params, prompt, output, own_seed)
        assert chosen[row] == want or margin < 1e-5
        alone = Sampler()(logits[row : row + 1], batch(rows[row], vocab_size=VOCAB + 1))
        assert alone.token_ids.item() == chosen[row]


@pytest.mark.slow
@examples(50)
@given(st.lists(a_row(), min_size=1, max_size=3), st.integers(0, 10_000))
def test_what_follows_the_tokens_is_what_would_be_built_anew(rows, seed):
    """Penalty counts, bad words and min_tokens over four steps of an unchanged batch."""
    generator = torch.Generator().manual_seed(seed)
    metadata = batch(*rows, vocab_size=VOCAB + 1)
    for _ in range(4):
        logits = torch.randn(len(rows), VOCAB + 1, generator=generator) * 3
        anew = SamplingMetadata(metadata.states, VOCAB + 1, logits.device)
        assert torch.equal(processed(logits, metadata), processed(logits, anew))
        token_ids = torch.randint(VOCAB + 1, (len(rows),), generator=generator)
        metadata.count(token_ids)
        for state, token_id in zip(metadata.states, token_ids.tolist(), strict=True):
            state.token_ids.append(token_id)


# -- filters, one by one -----------------------------------------------------------------------


def test_ties_at_the_kth_place_are_kept():
    probs = probs_of([[1.0, 2.0, 1.0, 0.0]], SamplingParams(top_k=2))
    assert (probs > 0).tolist() == [[True, True, True, False]]


def test_ties_do_not_widen_top_p():
    assert probs_of([[0.0] * 8], SamplingParams(top_p=0.5)).tolist() == [[0.25] * 4 + [0] * 4]


@pytest.mark.parametrize("only_the_best", [{"top_p": 1e-9}, {"top_k": 1}, {"min_p": 1.0}])
def test_the_best_token_always_stays(only_the_best):
    assert probs_of([[0.0, 0.1, 0.0]], SamplingParams(**only_the_best)).tolist() == [[0, 1, 0]]


def test_a_top_k_beyond_the_vocabulary_keeps_all():
    assert (probs_of([[3.0, -3.0, 0.0]], SamplingParams(top_k=1000)) > 0).all()


def test_top_p_measures_what_top_k_left():
    """The order of the filters is seen in the result."""
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()[None]
    probs = probs_of(logits.tolist(), SamplingParams(top_k=2, top_p=0.5))[0]
    assert probs.tolist() == pytest.approx([1, 0, 0, 0])  # 0.4 of 0.7 is more than half
    other = filters.apply_top_p(logits, torch.tensor([[0.5]]))
    other = filters.apply_top_k(other, torch.tensor([[2]]))
    assert (other[0] > -math.inf).tolist() == [True, True, False, False]


def test_a_tiny_temperature_overflows_nothing():
    probs = probs_of([[300.0, 299.0, -300.0]], SamplingParams(temperature=0.01))
    assert probs[0].tolist() == pytest.approx([1, 0, 0])


# -- draws -------------------------------------------------------------------------------------


def test_a_draw_inverts_the_cumulative_distribution():
    probs = torch.tensor([[0.25, 0.0, 0.5, 0.25]], dtype=torch.float64)
    for number, token in ((0.0, 0), (0.2499, 0), (0.25, 2), (0.7499, 2), (0.75, 3), (0.9999999, 3)):
        assert sample_from_cdf(probs, torch.tensor([number], dtype=torch.float64)).item() == token


def test_no_number_falls_beyond_the_last_token():
    probs = torch.full((1, 3), 1 / 3, dtype=torch.float64) * (1 - 1e-12)
    number = torch.tensor([1 - 2**-53], dtype=torch.float64)
    assert sample_from_cdf(probs, number).item() == 2


def drawn(params: SamplingParams, prompt=(), output=(), n: int = 6000) -> torch.Tensor:
    """Number of draws of each token at one position by ``n`` rows with the seeds 0, 1, 2 ..."""
    metadata = batch(*((params, prompt, output, seed) for seed in range(n)))
    chosen = Sampler()(torch.tensor([LOGITS] * n), metadata).token_ids
    return torch.bincount(chosen, minlength=VOCAB)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.5},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"temperature": 0.7, "top_k": 6},
        {"temperature": 1.5, "min_p": 0.1, "top_k": 7, "top_p": 0.9},
        {"presence_penalty": 0.8, "frequency_penalty": 0.4, "repetition_penalty": 1.4},
        {"logit_bias": {5: 2.5, 0: -1.0}, "allowed_token_ids": [0, 1, 5, 6, 9]},
        {"frequency_penalty": 1.0, "temperature": 0.8, "top_p": 0.7, "logit_bias": {11: 4.0}},
    ],
    ids=lambda params: "+".join(params) or "plain",
)
def test_frequencies_follow_the_exact_distribution(params):
    params, prompt, output = SamplingParams(**params), [2, 3], [0, 0, 1]
    exact, _ = filter_logits(process_logits(LOGITS, params, prompt, output), params)
    counts = drawn(params, prompt, output)
    assert all(counts[i] == 0 for i in range(VOCAB) if i not in exact)
    assert chi_square(counts, exact) < CRITICAL[len(exact) - 2]


def test_chi_square_sees_a_wrong_distribution():
    counts = drawn(SamplingParams(temperature=1.0))
    wrong, _ = filter_logits(LOGITS, SamplingParams(temperature=1.15))
    assert chi_square(counts, wrong) > CRITICAL[len(wrong) - 2]


# -- what changes logits -----------------------------------------------------------------------


def test_a_mixed_batch_pays_only_for_what_it_uses():
    assert batch(SamplingParams(), SamplingParams(temperature=0)).processors == []
    metadata = batch(SamplingParams(), SamplingParams(presence_penalty=1.0), SamplingParams())
    (penalties,) = metadata.processors
    assert penalties.counts.shape == (1, VOCAB)


def test_logits_are_left_as_they_are():
    logits = torch.randn(2, VOCAB)
    before = logits.clone()
    params = SamplingParams(allowed_token_ids=[1], logit_bias={1: 3.0}, presence_penalty=2.0)
    Sampler()(logits, batch(params, SamplingParams(top_k=2)))
    assert torch.equal(logits, before)


def test_functions_of_the_users_come_first():
    seen = []

    def favour(output, logits):
        seen.append(list(output))
        logits[3] = 100.0  # in place is allowed, too
        return logits

    def with_prompt(prompt, output, logits):
        seen.append((list(prompt), list(output)))
        return logits.roll(1)

    params = SamplingParams(temperature=0, logits_processors=[favour, with_prompt])
    both = replace(params, allowed_token_ids=[7, 8])
    metadata = batch((params, [5], [6, 7], 0), both, SamplingParams(temperature=0))
    chosen = Sampler()(torch.zeros(3, VOCAB), metadata).token_ids.tolist()
    assert chosen == [4, 7, 0]
    assert seen == [[6, 7], ([5], [6, 7]), [], ([0], [])]


def test_a_bad_word_is_forbidden_where_its_last_token_would_complete_it():
    params = SamplingParams()
    params.bad_words_token_ids = [[1, 2], [3], [5, 1, 2], [9, 2]]
    for output, forbidden in (
        ([1], {2, 3}),
        ([2], {3}),
        ([], {3}),
        ([5, 1], {2, 3}),
        ([1, 5], {3}),
    ):
        logits = processed(torch.zeros(1, VOCAB), batch((params, [1], output, 0)))[0]
        assert {i for i in range(VOCAB) if logits[i] == -math.inf} == forbidden


# -- logprobs ----------------------------------------------------------------------------------


def test_logprobs_are_the_raw_models():
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(0)) * 4
    out = Sampler()(
        logits,
        batch(
            SamplingParams(temperature=0.4, top_k=3, logprobs=2, logit_bias={4: 50.0}),
            SamplingParams(),
            SamplingParams(temperature=0, logprobs=0),
            SamplingParams(logprobs=-1),
            vocab_size=30,
        ),
    )
    assert sorted(out.logprobs) == [0, 2, 3]
    exact = logits.log_softmax(-1)
    for row, k in ((0, 2), (2, 0), (3, 30)):
        ids, values, rank = out.logprobs[row]
        order = exact[row].argsort(descending=True).tolist()
        assert ids == [out.token_ids[row], *order[:k]]
        assert values == pytest.approx(exact[row][ids].tolist())
        assert rank == 1 + order.index(ids[0])


# -- SamplingParams ----------------------------------------------------------------------------


def test_repr_says_what_differs():
    assert repr(SamplingParams(max_tokens=5)) == "SamplingParams(max_tokens=5)"


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
        ("min_p", 1.5, "from 0 to 1"),
        ("presence_penalty", 2.1, "from -2 to 2"),
        ("frequency_penalty", -2.1, "from -2 to 2"),
        ("repetition_penalty", 0, "above 0"),
        ("min_tokens", -1, "at least 0"),
        ("min_tokens", 17, "at most max_tokens=16"),
        ("logprobs", -2, "at least 0, or -1"),
        ("prompt_logprobs", 1.0, "at least 0, or -1"),
        ("truncate_prompt_tokens", 0, "at least 1, or -1"),
        ("truncate_prompt_tokens", -2, "at least 1, or -1"),
        ("allowed_token_ids", [], "at least one token id"),
        ("allowed_token_ids", [1, -1], "at least one token id"),
        ("bad_words", "word", "a list of non-empty strings"),
        ("bad_words", [" "], "a list of non-empty strings"),
        ("logit_bias", [1], "a dict from token ids to numbers"),
        ("logit_bias", {"1": 1.0}, "a dict from token ids to numbers"),
        ("logits_processors", [3], "a list of functions"),
        ("output_kind", "delta", "a RequestOutputKind"),
        ("best_of", 3, "keep those with the best cumulative_logprob"),
        ("structured_outputs", {}, "a StructuredOutputsParams"),
        ("flat_logprobs", True, "logprobs are dicts"),
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


def test_a_bias_out_of_range_is_named():
    with pytest.raises(ValueError, match=r"every value of logit_bias .* -100 to 100, got 101"):
        SamplingParams(logit_bias={3: 1.0, 4: 101})
