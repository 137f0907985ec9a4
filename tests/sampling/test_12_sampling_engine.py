"""Every sampling parameter in the engine: against the oracle, transformers, and by example."""

import json
import math
import random
import shutil

import pytest
import torch
from helpers import run_and_compare
from sampling_draws import anything

from minivllm import LLM, SamplingParams
from minivllm.outputs import Logprob
from minivllm.worker import model_runner

FREE = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm(tiny_chat):
    return LLM(str(tiny_chat), num_gpu_blocks_override=200, max_logprobs=-1)


def make_llm(directory, **kwargs):
    kwargs = {"num_gpu_blocks_override": 200, **kwargs}
    return LLM(str(directory), skip_tokenizer_init=True, **kwargs)


def tokens_of(llm, prompt, **params):
    params = {**FREE, **params}
    return llm.generate(prompt, SamplingParams(**params), use_tqdm=False)[0].outputs[0].token_ids


# -- equal to the oracle -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_every_parameter_equals_the_oracle_across_preemptions(tiny_qwen2, mode):
    llm = make_llm(
        tiny_qwen2, block_size=4, max_model_len=40, num_gpu_blocks_override=15,
        max_num_batched_tokens=13, preemption_mode=mode,
    )  # fmt: skip
    rng = random.Random(5)
    prompts = [[rng.randrange(90) for _ in range(rng.randint(1, 12))] for _ in range(10)]
    params = [anything(rng, 97) for _ in prompts]
    compared, exempted = run_and_compare(llm, prompts, params)
    assert llm.llm_engine.scheduler.num_preemptions > 0
    assert exempted < compared / 10


def test_samples_of_one_prompt_have_their_own_penalties(tiny_qwen2):
    llm = make_llm(tiny_qwen2)
    params = {"temperature": 1.0, "max_tokens": 12, "presence_penalty": 2.0, "ignore_eos": True}
    together = llm.generate([1, 2, 3], SamplingParams(n=3, seed=5, **params), use_tqdm=False)[0]
    for i in range(3):
        alone = llm.generate([1, 2, 3], SamplingParams(seed=5 + i, **params), use_tqdm=False)[0]
        assert together.outputs[i].token_ids == alone.outputs[0].token_ids


# -- logprobs ----------------------------------------------------------------------------------


def hf_logprobs(directory, token_ids):
    """By transformers: the logprobs of what comes after each position, ``[n, vocab]``."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor([token_ids])).logits[0].log_softmax(-1)


def check_logprobs(found: dict[int, Logprob], exact, token_id: int, k: int):
    best = exact.topk(k).values
    assert len(found) in (k, k + 1)
    assert next(iter(found)) == token_id
    for i, logprob in found.items():
        assert logprob.logprob == pytest.approx(exact[i].item(), abs=1e-4)
        assert logprob.rank == 1 + (exact > exact[i] + 1e-5).sum()
    others = sorted((p.rank, p.logprob) for p in found.values() if p.rank <= k)
    assert [p for _, p in others] == pytest.approx(best.tolist(), abs=1e-4)


def test_logprobs_are_those_of_transformers(tiny_qwen2):
    llm = make_llm(tiny_qwen2, block_size=4, max_num_batched_tokens=7)
    prompt = list(range(30, 50))
    params = SamplingParams(
        temperature=1.5, top_k=8, seed=3, max_tokens=9, ignore_eos=True, logprobs=4,
        prompt_logprobs=2, repetition_penalty=1.5,
    )  # fmt: skip
    output = llm.generate(prompt, params, use_tqdm=False)[0]
    completion = output.outputs[0]
    exact = hf_logprobs(tiny_qwen2, prompt + completion.token_ids)
    assert len(completion.logprobs) == 9
    for i, (token_id, found) in enumerate(
        zip(completion.token_ids, completion.logprobs, strict=True)
    ):
        check_logprobs(found, exact[len(prompt) + i - 1], token_id, 4)
    of_tokens = [d[t].logprob for d, t in zip(completion.logprobs, completion.token_ids)]  # noqa: B905
    assert completion.cumulative_logprob == pytest.approx(sum(of_tokens))
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(prompt)
    for i in range(1, len(prompt)):
        check_logprobs(output.prompt_logprobs[i], exact[i - 1], prompt[i], 2)


def test_nobody_gets_logprobs_who_did_not_ask(llm):
    output = llm.generate("abc", SamplingParams(**FREE), use_tqdm=False)[0]
    completion = output.outputs[0]
    assert (output.prompt_logprobs, completion.logprobs, completion.cumulative_logprob) == (
        None, None, None,
    )  # fmt: skip


def test_logprobs_0_is_the_sampled_token_alone_and_minus_1_is_all(llm):
    params = [SamplingParams(**FREE, logprobs=k, prompt_logprobs=k) for k in (0, -1)]
    none, everything = llm.generate(["abc", "abc"], params, use_tqdm=False)
    for token_id, found in zip(none.outputs[0].token_ids, none.outputs[0].logprobs, strict=True):
        assert list(found) == [token_id]
        assert found[token_id].decoded_token == llm.get_tokenizer().decode([token_id])
    vocab_size = llm.llm_engine.model_config.vocab_size
    for found in (*everything.outputs[0].logprobs, *everything.prompt_logprobs[1:]):
        assert sorted(found) == list(range(vocab_size))
        assert sum(math.exp(p.logprob) for p in found.values()) == pytest.approx(1, abs=1e-4)


def test_without_text_a_logprob_has_no_text(llm):
    params = SamplingParams(**FREE, logprobs=1, detokenize=False)
    found = llm.generate("abc", params, use_tqdm=False)[0].outputs[0].logprobs[0]
    assert {p.decoded_token for p in found.values()} == {None}


def test_a_prompt_in_the_cache_is_computed_again_for_its_logprobs(tiny_qwen2):
    llm = make_llm(tiny_qwen2, block_size=4)
    prompt = list(range(17))
    outputs = [
        llm.generate(prompt, SamplingParams(**FREE, prompt_logprobs=k), use_tqdm=False)[0]
        for k in (1, 1, None)
    ]
    assert [o.num_cached_tokens for o in outputs] == [0, 0, 16]
    assert outputs[0].prompt_logprobs == outputs[1].prompt_logprobs
    assert None not in outputs[1].prompt_logprobs[1:]
    stats = llm.llm_engine.scheduler.kv_manager.prefix_cache.stats
    assert (stats.queries, stats.hits) == (17, 16)
    skipping = SamplingParams(**FREE, skip_reading_prefix_cache=True)
    assert llm.generate(prompt, skipping, use_tqdm=False)[0].num_cached_tokens == 0


def test_every_output_of_a_stream_has_all_prompt_logprobs(tiny_qwen2, monkeypatch):
    """A decode step has none of its own, and must not take the prompt's for missing."""
    llm = make_llm(tiny_qwen2, block_size=4, max_num_batched_tokens=4)
    computed = []
    compute = model_runner.prompt_logprobs_of
    monkeypatch.setattr(
        model_runner,
        "prompt_logprobs_of",
        lambda *args: computed.append(compute(*args)) or computed[-1],
    )
    prompt, params = list(range(11)), SamplingParams(**FREE, prompt_logprobs=2)
    streamed = [output.prompt_logprobs for output in llm.stream(prompt, params)]
    assert len(streamed) == FREE["max_tokens"]
    assert list(map(bool, computed)) == [True] * 3 + [False] * 5, "three chunks, then decodes"
    whole = llm.generate(prompt, params, use_tqdm=False)[0].prompt_logprobs
    assert len(whole) == 11
    assert None not in whole[1:]
    assert streamed == [whole] * len(streamed)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_prompt_logprobs_survive_a_preemption(tiny_qwen2, mode):
    """Some are thrown out in the middle of their prompt, some after it."""
    outputs = []
    for num_blocks in (200, 14):
        llm = make_llm(
            tiny_qwen2, block_size=4, max_model_len=40, num_gpu_blocks_override=num_blocks,
            max_num_batched_tokens=6, preemption_mode=mode,
        )  # fmt: skip
        params = SamplingParams(
            n=2, temperature=1.0, seed=1, max_tokens=10, ignore_eos=True, logprobs=1,
            prompt_logprobs=1,
        )  # fmt: skip
        runs = llm.generate([[i] * 5 + [9] * 5 for i in range(4)], params, use_tqdm=False)
        for run in runs:
            assert len(run.prompt_logprobs) == 10
            assert None not in run.prompt_logprobs[1:]
            assert [len(c.logprobs) for c in run.outputs] == [10, 10]
        outputs.append(runs)
        assert bool(llm.llm_engine.scheduler.num_preemptions) == (num_blocks == 14)
        llm.llm_engine.check_integrity()
        assert llm.llm_engine.output_processor.request_states == {}
    for large, small in zip(*outputs, strict=True):
        for a, b in zip(large.prompt_logprobs[1:], small.prompt_logprobs[1:], strict=True):
            assert list(a) == list(b)
            assert [p.logprob for p in a.values()] == pytest.approx(
                [p.logprob for p in b.values()], abs=1e-4
            )
        assert [c.token_ids for c in large.outputs] == [c.token_ids for c in small.outputs]


def test_more_logprobs_than_the_engine_gives_are_refused(tiny_qwen2):
    llm = make_llm(tiny_qwen2)
    for name, asked in (("logprobs", 21), ("prompt_logprobs", -1)):
        with pytest.raises(
            ValueError, match=f"{name} must be at most max_logprobs=20, got {asked}"
        ):
            llm.generate([1], SamplingParams(**{name: asked}), use_tqdm=False)


# -- the end, and what may be said -------------------------------------------------------------


def test_nothing_stops_before_min_tokens(llm):
    full = tokens_of(llm, "abc", max_tokens=20)
    eos = llm.get_tokenizer().eos_token_id
    bias = {eos: 100.0, full[0]: 50.0}
    for min_tokens in (0, 4):
        got = tokens_of(
            llm, "abc", max_tokens=20, logit_bias=bias, min_tokens=min_tokens, ignore_eos=False
        )
        assert got == [full[0]] * min_tokens + [eos]
    stopped = tokens_of(
        llm, "abc", max_tokens=20, logit_bias=bias, min_tokens=3, stop_token_ids=[full[0]]
    )
    assert full[0] not in stopped[:3]
    assert eos not in stopped[:3]


def test_stop_strings_that_end_within_min_tokens_end_nothing(llm):
    tokenizer = llm.get_tokenizer()
    a, b = (tokenizer.encode(c)[0] for c in "ab")
    turns = lambda output, logits: logits.index_fill(  # noqa: E731
        0, torch.tensor([a if len(output) % 4 < 2 else b]), 1e9
    )
    params = {"stop": ["ab"], "logits_processors": [turns], "max_tokens": 12}
    params = {**FREE, **params}
    for min_tokens, text in ((0, "a"), (2, "a"), (3, "aabba"), (6, "aabba"), (7, "aabbaabba")):
        one = SamplingParams(**params, min_tokens=min_tokens)
        got = llm.generate("x", one, use_tqdm=False)[0].outputs[0]
        assert (got.text, got.stop_reason) == (text, "ab"), min_tokens


def test_a_bad_word_of_several_tokens_never_appears(llm):
    word = "ab"
    a, b = llm.get_tokenizer().encode(word)
    bias = {a: 50.0, b: 60.0}
    free = tokens_of(llm, "x", logit_bias=bias)
    assert free == [b] * 6
    assert tokens_of(llm, "x", logit_bias=bias, bad_words=["b"]) == [a] * 6
    bias = {a: 60.0, b: 50.0}
    turns = [lambda output, logits: logits.index_fill(0, torch.tensor([b]), 100.0)
             if output[-1:] == [a] else logits]  # fmt: skip
    assert tokens_of(llm, "x", logit_bias=bias, logits_processors=turns) == [a, b, a, b, a, b]
    banned = tokens_of(llm, "x", logit_bias=bias, logits_processors=turns, bad_words=[word])
    assert banned == [a] * 6


def test_only_allowed_tokens(llm):
    allowed = [5, 9, 77]
    got = tokens_of(llm, "abc", allowed_token_ids=allowed, max_tokens=30, temperature=2.0)
    assert set(got) <= set(allowed)
    assert len(set(got)) > 1


@pytest.mark.parametrize("overlapped", [False, True])
def test_where_nothing_is_left_only_that_request_ends(llm, tiny_chat, overlapped):
    """Also where the next step has been planned behind the token that did not come."""
    if overlapped:
        llm = LLM(str(tiny_chat), num_gpu_blocks_override=200, async_scheduling=True)

    def nothing(output, logits):
        return logits.fill_(-math.inf) if len(output) == 2 else logits

    one = SamplingParams(**FREE, logits_processors=[nothing], logprobs=1)
    drawing = SamplingParams(
        temperature=1.0, seed=1, max_tokens=6, allowed_token_ids=[97], bad_words=["aa"], logprobs=0
    )
    a = llm.get_tokenizer().encode("a")[0]
    drawing.allowed_token_ids = [a]
    outputs = llm.generate(["x", "x", "x"], [one, drawing, SamplingParams(**FREE)], use_tqdm=False)
    first, second, third = (o.outputs[0] for o in outputs)
    assert (first.finish_reason, len(first.token_ids), len(first.logprobs)) == ("error", 2, 2)
    assert (second.finish_reason, second.token_ids) == ("error", [a])
    assert (third.finish_reason, third.token_ids) == ("length", tokens_of(llm, "x"))
    llm.llm_engine.check_integrity()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"allowed_token_ids": [3, 10**6]}, "every id in allowed_token_ids must be .* got 1000000"),
        ({"logit_bias": {10**6: 1.0}}, "every id in logit_bias must be .* got 1000000"),
        ({"allowed_token_ids": [64], "bad_words": ["a"]}, r"allowed_token_ids is \[64\], and bad"),
        ({"truncate_prompt_tokens": 512}, "truncate_prompt_tokens must be at most 511"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(llm, params, message):
    assert llm.get_tokenizer().encode("a") == [64]
    with pytest.raises(ValueError, match=message):
        llm.generate("abc", SamplingParams(**params), use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()


def test_a_field_changed_later_is_checked_again(llm):
    params = SamplingParams(**FREE)
    params.top_p = 7
    with pytest.raises(ValueError, match="top_p must be"):
        llm.generate("abc", params, use_tqdm=False)
    params.top_p = 1.0
    params.stop_token_ids = [tokens_of(llm, "abc")[2]]
    assert len(llm.generate("abc", params, use_tqdm=False)[0].outputs[0].token_ids) <= 3


@pytest.mark.parametrize(("asked", "kept"), [(3, 3), (500, 20), (-1, 20)])
def test_a_prompt_can_be_cut_at_its_start(llm, asked, kept):
    prompt = list(range(20))
    params = SamplingParams(**FREE, truncate_prompt_tokens=asked)
    output = llm.generate(prompt, params, use_tqdm=False)[0]
    assert output.prompt_token_ids == prompt[-kept:]


def test_a_prompt_that_is_too_long_is_cut_to_what_fits(llm):
    params = SamplingParams(**FREE, truncate_prompt_tokens=-1)
    output = llm.generate([7] * 600, params, use_tqdm=False)[0]
    assert len(output.prompt_token_ids) == 511
    assert len(output.outputs[0].token_ids) == 1


def test_what_a_model_says_of_sampling(tiny_chat, tmp_path):
    directory = shutil.copytree(tiny_chat, tmp_path / "model")
    says = {
        "min_p": 0.1, "repetition_penalty": 1.2, "max_new_tokens": 5, "top_k": None,
        "do_sample": True, "temperature": 0.4,
    }  # fmt: skip
    (directory / "generation_config.json").write_text(json.dumps(says))
    llm = LLM(str(directory), num_gpu_blocks_override=200)
    assert llm.get_default_sampling_params() == SamplingParams(
        min_p=0.1, repetition_penalty=1.2, max_tokens=5, temperature=0.4
    )
    assert len(llm.generate("abc", use_tqdm=False)[0].outputs[0].token_ids) <= 5


# -- best of n ---------------------------------------------------------------------------------


def best_of(llm, prompt, n, score=lambda c: c.cumulative_logprob, **params):
    """The README's example: draw n, keep the best."""
    params = SamplingParams(n=n, logprobs=0, **params)
    return max(llm.generate(prompt, params, use_tqdm=False)[0].outputs, key=score)


def test_the_best_of_n_by_likelihood_or_by_a_function(llm):
    params = {"temperature": 1.0, "seed": 4, "max_tokens": 8}
    every = llm.generate("abc", SamplingParams(n=5, logprobs=0, **params), use_tqdm=False)
    every = every[0].outputs
    best = best_of(llm, "abc", 5, **params)
    assert best.cumulative_logprob == max(c.cumulative_logprob for c in every)
    longest = best_of(llm, "abc", 5, score=lambda c: len(c.text), **params)
    assert len(longest.text) == max(len(c.text) for c in every)
