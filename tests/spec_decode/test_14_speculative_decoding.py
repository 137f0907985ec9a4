"""Speculation in the engine: every text is the one without, in fewer steps, in every mixture."""

import random
import re

import pytest
from helpers import Disturbed, examples, fail_once, make_llm, run_and_compare
from http_recordings import metrics_of
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from sampling_draws import anything

from minivllm import LLM, BeamSearchParams, EngineArgs, SamplingParams
from minivllm.metrics.prometheus import make_registry
from minivllm.sampling_params import StructuredOutputsParams
from minivllm.spec_decode import proposer as proposer_module
from minivllm.trace.records import Verified

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3,
         "prompt_lookup_min": 1}  # fmt: skip


SMALL = {"max_model_len": 80, "num_gpu_blocks_override": 64, "swap_space": 0.001}


def small_llm(directory, **kwargs):
    return make_llm(directory, **{**SMALL, **kwargs})


class Hints:
    """A proposer that has seen the texts: its drafts are right up to a place drawn by ``rng``.

    Args:
        rng: how many drafts, and how many of them are right; None: all, always.
        k: the most drafts.
    """

    def __init__(self, rng, k):
        self.rng, self.k = rng, k
        self.texts = {}  # prompt and output by sequence id

    def learn(self, outputs):
        for output in outputs:
            for c in output.outputs:
                seq_id = output.request_id if c.index == 0 else f"{output.request_id}/{c.index}"
                self.texts[seq_id] = [*output.prompt_token_ids, *c.token_ids]

    def propose(self, seqs):
        return [self._propose(seq) for seq in seqs]

    def _propose(self, seq):
        drafts = self.texts.get(seq.seq_id, [])[seq.num_tokens :][: self.k]
        if self.rng is not None and drafts:
            drafts = drafts[: self.rng.randint(0, self.k)]
            for wrong in range(self.rng.randint(0, self.k), len(drafts)):
                drafts[wrong] = (drafts[wrong] + 1) % 90
        return drafts


def run(llm, requests, rng=None):
    """Outputs by request id, the invariants checked after each step; some requests come later."""
    engine, outputs, requests = llm.llm_engine, {}, list(requests)
    while requests or engine.has_unfinished_requests():
        while requests and (rng is None or rng.random() < 0.5):
            request_id, prompt, params = requests.pop(0)
            engine.add_request(request_id, {"prompt_token_ids": prompt}, params)
        outputs.update({o.request_id: o for o in engine.step()})
        engine.check_integrity()
    pool = engine.scheduler.kv_manager.block_pool
    assert pool.num_free_blocks == pool.num_usable_blocks
    return outputs


def tokens(outputs):
    return {
        request_id: [(c.token_ids, c.finish_reason, c.stop_reason) for c in output.outputs]
        for request_id, output in outputs.items()
    }


# -- the same text -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("caching", [True, False])
def test_ngrams_equal_the_oracle_with_every_parameter(tiny_qwen2, mode, caching):
    llm = small_llm(
        tiny_qwen2, block_size=4, max_model_len=40, num_gpu_blocks_override=15,
        max_num_batched_tokens=13, preemption_mode=mode, enable_prefix_caching=caching,
        speculative_config=NGRAM, trace=True,
    )  # fmt: skip
    rng = random.Random(f"{mode} n-grams")
    few = [rng.randrange(90) for _ in range(3)]
    prompts = [[rng.choice(few) for _ in range(rng.randint(1, 16))] for _ in range(14)]
    params = [anything(rng, 97) for _ in prompts]
    compared, exempted = run_and_compare(llm, prompts, params)
    assert llm.llm_engine.scheduler.num_preemptions > 0
    assert exempted < compared / 10
    assert any(record.num_accepted for record in llm.llm_engine.trace.of(Verified))


def mixture(*pools):
    """Settings of small engines in every mixture, with pools of this many blocks of 4 tokens."""
    return st.fixed_dictionaries(
        {
            "num_gpu_blocks_override": st.sampled_from(pools),
            "max_num_batched_tokens": st.sampled_from([9, 24, 256]),
            "enable_prefix_caching": st.booleans(),
            "preemption_mode": st.sampled_from([None, "swap", "recompute"]),
            "block_size": st.sampled_from([1, 4, 16]),
            "attention_backend": st.sampled_from(["paged_torch", "paged_numba", "reference"]),
            "long_prefill_token_threshold": st.sampled_from([0, 3]),
            "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
        }
    )


def some_requests(rng):
    """Two to six that share beginnings, some with samples, logprobs or beams."""
    common, requests = [rng.randrange(90) for _ in range(20)], []
    for i in range(rng.randint(2, 6)):
        prompt = [*common[: rng.randint(0, 20)], rng.randrange(90)]
        params = anything(rng, 97)
        params.n = rng.choice([1, 1, 3]) if params.temperature else 1
        params.logprobs = rng.choice([None, 2])
        if rng.random() < 0.15:
            params = BeamSearchParams(beam_width=2, max_tokens=9, ignore_eos=True)
        requests.append((str(i), prompt, params))
    return requests


@pytest.mark.slow
@examples(20)
@given(
    seed=st.integers(0, 10**6),
    k=st.sampled_from([1, 3, 5, 8]),
    settings=mixture(32, 45, 200),
)
def test_guesses_right_and_wrong_change_no_token(tiny_qwen2, seed, k, settings):
    rng = random.Random(seed)
    settings = {**settings, "max_model_len": 44, "max_num_seqs": 8, "swap_space": 0.001}
    if settings["block_size"] == 1:
        settings["num_gpu_blocks_override"] *= 4
    requests = some_requests(rng)
    plain = run(small_llm(tiny_qwen2, **settings), requests)
    hints = Hints(rng, k)
    hints.learn(plain.values())
    llm = small_llm(
        tiny_qwen2, **settings, trace=True,
        speculative_config={"model": hints, "num_speculative_tokens": k},
    )  # fmt: skip
    guessed = run(llm, requests, rng)
    assert tokens(guessed) == tokens(plain)
    for request_id, output in plain.items():
        for want, got in zip(output.outputs, guessed[request_id].outputs, strict=True):
            assert (want.logprobs is None) == (got.logprobs is None)
            for one, other in zip(want.logprobs or [], got.logprobs or [], strict=True):
                assert list(one) == list(other)
                for token_id in one:
                    assert one[token_id].logprob == pytest.approx(other[token_id].logprob, abs=1e-3)
    for record in llm.llm_engine.trace.of(Verified):
        assert len(record.draft_token_ids) <= k


def test_right_guesses_are_all_accepted(tiny_qwen2):
    """A draft that is the target: k + 1 tokens in every step but the last."""
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=32, ignore_eos=True)
    plain = run(small_llm(tiny_qwen2, max_model_len=64), [("a", [5, 6], params)])
    hints = Hints(None, 4)
    hints.learn(plain.values())
    llm = small_llm(
        tiny_qwen2, max_model_len=64, trace=True,
        speculative_config={"model": hints, "num_speculative_tokens": 4},
    )  # fmt: skip
    assert tokens(run(llm, [("a", [5, 6], params)])) == tokens(plain)
    verified = list(llm.llm_engine.trace.of(Verified))
    assert [len(r.draft_token_ids) for r in verified] == [4] * 6  # and a last step without
    assert all(r.num_accepted == 4 for r in verified)
    assert llm.llm_engine.trace.num_steps == 1 + 6 + 1
    stats = llm.llm_engine.metrics.spec_decoding
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (6, 24, 24)
    assert stats.num_accepted_tokens_per_pos == [6, 6, 6, 6]
    assert (stats.acceptance_rate, stats.mean_acceptance_length) == (1.0, 5.0)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["_forward", "sampler"])
@pytest.mark.parametrize("call", range(1, 9))
def test_a_failed_step_takes_drafts_back(tiny_qwen2, monkeypatch, what, call):
    params = SamplingParams(n=2, temperature=1.0, seed=3, max_tokens=24, logprobs=1,
                            ignore_eos=True, presence_penalty=0.5)  # fmt: skip
    settings = {"block_size": 4, "max_model_len": 40, "max_num_batched_tokens": 6}
    plain = run(small_llm(tiny_qwen2, **settings), [("a", [5, 6, 5, 6], params)])
    hints = Hints(random.Random(call), 3)
    hints.learn(plain.values())
    llm = small_llm(
        tiny_qwen2, **settings, speculative_config={"model": hints, "num_speculative_tokens": 3}
    )
    engine, num_failed, outputs = llm.llm_engine, 0, {}
    fail_once(monkeypatch, engine.model_runner, what, call)
    engine.add_request("a", {"prompt_token_ids": [5, 6, 5, 6]}, params)
    while engine.has_unfinished_requests():
        try:
            outputs.update({o.request_id: o for o in engine.step()})
        except Disturbed:
            num_failed += 1
        engine.check_integrity()
    assert num_failed == 1
    assert tokens(outputs) == tokens(plain)


# -- text --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedded():
    settings = {"max_model_len": 1024, "num_gpu_blocks_override": 200, "swap_space": 0.001}
    return LLM(**settings), LLM(**settings, speculative_config=NGRAM, trace=True)


TABLE = "| name | age |\n|---|---|\n| Ann | 31 |\n| Bob | 42 |\n| Cy | 53 |\n"


@pytest.mark.slow
def test_stop_strings_and_ends_inside_a_step(embedded):
    plain, guessing = embedded
    prompts = [TABLE + "| Ann | 31 |\n| Bob |", TABLE, "one two one two one"]
    for params in (
        SamplingParams(temperature=0, max_tokens=40),
        SamplingParams(temperature=0, max_tokens=40, stop=["wo", "3 |"], min_tokens=3),
        SamplingParams(temperature=0, max_tokens=7, bad_words=["|"]),
        SamplingParams(temperature=0.7, seed=1, max_tokens=30, stop=["\n"], n=2,
                       include_stop_str_in_output=True),
    ):  # fmt: skip
        want, got = (llm.generate(prompts, params, use_tqdm=False) for llm in (plain, guessing))
        for one, other in zip(want, got, strict=True):
            for a, b in zip(one.outputs, other.outputs, strict=True):
                assert (b.text, b.token_ids) == (a.text, a.token_ids)
                assert (b.finish_reason, b.stop_reason) == (a.finish_reason, a.stop_reason)
        guessing.llm_engine.check_integrity()
    assert any(r.num_accepted for r in guessing.llm_engine.trace.of(Verified))


def test_what_a_grammar_forces_is_drafted_and_what_it_forbids_is_not(embedded):
    """The fixed parts of an answer cost no step of their own; the text is the same."""
    plain, guessing = embedded
    pattern = r'\{"first_name": "[A-Z][a-z]{1,8}", "first_choice": (true|false)\}'
    params = SamplingParams(
        temperature=0.9, seed=2, max_tokens=60,
        structured_outputs=StructuredOutputsParams(regex=pattern),
    )  # fmt: skip
    before = guessing.llm_engine.trace.num_steps
    (want,), (got,) = (
        llm.generate(['{"first_name": "'], params, use_tqdm=False) for llm in (plain, guessing)
    )
    assert got.outputs[0].token_ids == want.outputs[0].token_ids
    assert re.fullmatch(pattern, got.outputs[0].text)
    steps = guessing.llm_engine.trace.num_steps - before
    assert steps < len(got.outputs[0].token_ids)


def test_beams_are_searched_without_and_it_is_said(tiny_qwen2, caplog, monkeypatch):
    monkeypatch.setattr(proposer_module.logger, "propagate", True)
    llm = small_llm(tiny_qwen2, speculative_config=NGRAM, trace=True)
    params = BeamSearchParams(beam_width=2, max_tokens=8, ignore_eos=True)
    with caplog.at_level("INFO", logger=proposer_module.logger.name):
        for _ in range(2):
            run(llm, [("b", [1, 1, 1, 1, 1], params)])
    assert not list(llm.llm_engine.trace.of(Verified))
    said = [r for r in caplog.records if "Beams are searched without speculation" in r.message]
    assert len(said) == 1


# -- proposers of one's own --------------------------------------------------------------------


@pytest.mark.parametrize(
    "drafts",
    [None, [[1], [2]], [["a"]], [[97]], [[-1]], [[True]], 3],
    ids=repr,
)
def test_a_proposer_that_fails_costs_nothing_but_its_drafts(tiny_qwen2, monkeypatch, drafts):
    class Broken:
        def propose(self, seqs):
            return drafts

    said = []
    monkeypatch.setattr(proposer_module.logger, "exception", said.append)
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    llm = small_llm(tiny_qwen2, speculative_config={"model": Broken(), "num_speculative_tokens": 2})
    plain = run(small_llm(tiny_qwen2), [("a", [1, 2], params)])
    assert tokens(run(llm, [("a", [1, 2], params)])) == tokens(plain)
    assert said


# -- arguments ---------------------------------------------------------------------------------


def config_of(**kwargs):
    return EngineArgs(**kwargs).speculative_config


def test_the_names_of_vllm_now_and_then():
    new = config_of(
        speculative_config={"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
    )
    assert (new.method, new.prompt_lookup_min, new.prompt_lookup_max) == ("ngram", 4, 4)
    both = config_of(speculative_config={"model": "[ngram]", "num_speculative_tokens": 2})
    assert (both.method, both.prompt_lookup_min, both.prompt_lookup_max) == ("ngram", 5, 5)
    old = config_of(
        speculative_model="[ngram]", num_speculative_tokens=4, ngram_prompt_lookup_max=4,
        use_v2_block_manager=True,
    )  # fmt: skip
    assert (old.method, old.num_speculative_tokens) == ("ngram", 4)
    assert (old.prompt_lookup_min, old.prompt_lookup_max) == (1, 4)
    assert config_of() is None
    args = EngineArgs(speculative_config=NGRAM)
    assert EngineArgs(**vars(args)).speculative_config == args.speculative_config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"speculative_config": 4}, "speculative_config must be a dict"),
        ({"speculative_config": {}}, r"\['num_speculative_tokens'\] must be given"),
        ({"speculative_config": {**NGRAM, "num_speculative_tokens": 0}}, "integer from 1 to 128"),
        ({"speculative_config": {**NGRAM, "num_speculative_tokens": 129}}, "integer from 1 to 128"),
        ({"speculative_config": {**NGRAM, "k": 4}}, "one of its keys: num_speculative_tokens"),
        ({"speculative_config": {**NGRAM, "method": "medusa"}}, "one of ngram, draft_model"),
        ({"speculative_config": {"num_speculative_tokens": 4}}, "method must be one of"),
        ({"speculative_config": {**NGRAM, "model": "opt-125m"}}, "'draft_model' with this model"),
        ({"speculative_config": {**NGRAM, "model": 3}}, "an object with a method propose"),
        ({"speculative_config": {**NGRAM, "prompt_lookup_min": 4}}, "at most prompt_lookup_max=3"),
        ({"speculative_config": {**NGRAM, "prompt_lookup_max": 0}}, "prompt_lookup_max must be"),
        ({"speculative_config": {**NGRAM, "model": Hints(None, 2)}}, "'custom_class' with this m"),
        ({"speculative_config": NGRAM, "num_speculative_tokens": 4}, "None beside speculative"),
        ({"num_speculative_tokens": 4}, "speculative_model must be given beside"),
        ({"speculative_model": "[ngram]"}, "num_speculative_tokens must be given beside"),
        (
            {"speculative_model": "[ngram]", "num_speculative_tokens": 4},
            "ngram_prompt_lookup_max must be given",
        ),
        ({"speculative_mode": "[ngram]"}, "speculative_model"),
        ({"use_v2_block_manager": False}, "use_v2_block_manager must be True"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        EngineArgs(**arguments)


def test_no_more_drafts_than_a_sequence_is_long(tiny_qwen2):
    with pytest.raises(ValueError, match="num_speculative_tokens must be at most 7"):
        small_llm(
            tiny_qwen2, max_model_len=8, speculative_config={**NGRAM, "num_speculative_tokens": 8}
        )


# -- metrics -----------------------------------------------------------------------------------


def test_the_log_line_counts_what_the_trace_does(tiny_qwen2, caplog, monkeypatch):
    from minivllm.metrics import loggers as stat_logger

    monkeypatch.setattr(stat_logger.logger, "propagate", True)
    llm = small_llm(tiny_qwen2, speculative_config=NGRAM, trace=True, disable_log_stats=False)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    run(llm, [("a", [1, 2, 1, 2, 1, 2], params), ("b", [3, 3, 3, 3], params)])
    verified = list(llm.llm_engine.trace.of(Verified))
    drafted = sum(len(r.draft_token_ids) for r in verified)
    accepted = sum(r.num_accepted for r in verified)
    assert 0 < accepted < drafted
    stats = llm.llm_engine.stat_logger
    with caplog.at_level("INFO", logger=stat_logger.logger.name):
        stats.log()
        stats.log()  # nothing since then
    lines = [r.message for r in caplog.records if "SpecDecoding metrics" in r.message]
    assert len(lines) == 1
    assert f"Mean acceptance length: {1 + accepted / len(verified):.2f}" in lines[0]
    assert f"Accepted: {accepted} tokens, Drafted: {drafted} tokens" in lines[0]
    assert f"Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%" in lines[0]


def test_the_counters_are_vllms_and_count_what_the_trace_does(tiny_qwen2):
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    requests = [("a", [1, 2, 1, 2, 1, 2], params), ("b", [3, 3, 3, 3], params)]
    hints = Hints(random.Random(1), 4)
    hints.learn(run(small_llm(tiny_qwen2), requests).values())
    llm = small_llm(
        tiny_qwen2, trace=True,
        speculative_config={"model": hints, "num_speculative_tokens": 4},
    )  # fmt: skip
    run(llm, requests)
    records = list(llm.llm_engine.trace.of(Verified))
    drafted = sum(len(r.draft_token_ids) for r in records)
    accepted = sum(r.num_accepted for r in records)
    by_place = [sum(r.num_accepted > place for r in records) for place in range(4)]
    assert 0 < by_place[3] < by_place[0]
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    assert metrics["vllm:spec_decode_num_drafts"].value == len(records)
    assert metrics["vllm:spec_decode_num_draft_tokens"].value == drafted
    assert metrics["vllm:spec_decode_num_accepted_tokens"].value == accepted
    assert metrics["vllm:spec_decode_num_accepted_tokens_per_pos"].values == by_place

    samples = metrics_of(generate_latest(make_registry(llm.llm_engine.get_metrics)).decode())[1]
    assert samples["vllm:spec_decode_num_draft_tokens_total"] == drafted
    for place, count in enumerate(by_place):
        name = f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}}'
        assert samples[name] == count


def test_without_speculation_there_are_no_counters_of_it(tiny_qwen2):
    assert not [m for m in small_llm(tiny_qwen2).get_metrics() if "spec_decode" in m.name]
