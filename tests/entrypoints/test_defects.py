"""Defects found once: a caller that harmed others, or got an answer that vLLM does not give.

Each test is the smallest case of a defect that was found once.
"""

import json
import math
import shutil

import numpy as np
import pytest
import torch

from minivllm import LLM, BeamSearchParams, SamplingParams
from minivllm.engine.detokenizer import Detokenizer, FastStream, SlowStream
from minivllm.entrypoints.chat_utils import load_chat_template
from minivllm.kv.block import FreeKVCacheBlockQueue
from minivllm.kv.prefix_cache import CachingMetrics, PrefixCacheStats
from minivllm.lab.sim import replay
from minivllm.models.loader import load_config
from minivllm.sampling.logprobs import gather_logprobs

IDS = [1, 2, 3, 4, 5, 6, 7, 8, 9]
P = {"prompt_token_ids": IDS}
GREEDY = {"temperature": 0, "max_tokens": 5, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm(tiny_qwen2):
    return LLM(
        str(tiny_qwen2), skip_tokenizer_init=True, block_size=4, max_model_len=128,
        num_gpu_blocks_override=200,
    )  # fmt: skip


@pytest.fixture(scope="module")
def chat_llm(tiny_chat):
    return LLM(str(tiny_chat), block_size=4, num_gpu_blocks_override=400)


@pytest.fixture
def copy(tiny_qwen2, tmp_path):
    return shutil.copytree(tiny_qwen2, tmp_path / "model")


def one(llm, params, prompt=P):
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0]


def configure(directory, name, **changes):
    file = directory / name
    known = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(known | changes))
    return directory


# -- no caller harms another -------------------------------------------------------------------


@pytest.mark.parametrize("salt", ["\ud800", "a\udfff", "", 5])
def test_a_salt_that_is_no_text_is_refused(llm, salt):
    with pytest.raises(ValueError, match="cache_salt must be"):
        llm.llm_engine.add_request("bad", P | {"cache_salt": salt}, SamplingParams())
    assert not llm.llm_engine.has_unfinished_requests()


def no_numbers(value):
    return lambda output, logits: torch.full_like(logits, value)


def raises(output, logits):
    raise RuntimeError("a mistake of the user's")


@pytest.mark.parametrize(
    "broken",
    [no_numbers(-math.inf), no_numbers(math.nan), no_numbers(math.inf), raises,
     lambda output: output, lambda output, logits: logits[:3], lambda output, logits: "x"],
    ids=["nothing left", "nan", "inf", "raises", "arity", "shape", "type"],
)  # fmt: skip
@pytest.mark.parametrize(
    "how", [{"temperature": 0}, {}, {"top_p": 0.9}, {"top_k": 3, "min_p": 0.1, "logprobs": 2}]
)
def test_a_row_without_numbers_ends_alone_and_shifts_nobodys(llm, broken, how):
    seeded = SamplingParams(seed=7, max_tokens=6, top_p=0.95, ignore_eos=True)
    alone = one(llm, seeded).token_ids
    bad = SamplingParams(logits_processors=[broken], **how)
    outputs = llm.generate([P, P, P], [bad, seeded, bad], use_tqdm=False)
    assert [o.outputs[0].finish_reason for o in outputs] == ["error", "length", "error"]
    assert outputs[0].outputs[0].token_ids == []
    assert outputs[1].outputs[0].token_ids == alone
    llm.llm_engine.check_integrity()


@pytest.mark.slow
def test_nothing_left_without_any_function(chat_llm):
    a = chat_llm.get_tokenizer().encode("a")[0]
    params = SamplingParams(top_p=0.9, allowed_token_ids=[a], bad_words=["aa"], seed=1)
    got = one(chat_llm, params, "x")
    assert (got.token_ids, got.finish_reason) == ([a], "error")


def test_a_repetition_penalty_that_float32_calls_zero_is_refused(llm):
    with pytest.raises(ValueError, match=r"repetition_penalty must be .* got 1e-46"):
        SamplingParams(repetition_penalty=1e-46)


def test_a_failed_step_changes_no_later_draw(llm, monkeypatch):
    """The filters raise once, in the middle of a seeded text; the text is the same."""
    params = SamplingParams(seed=7, max_tokens=4, ignore_eos=True)
    want = one(llm, params).token_ids
    engine = llm.llm_engine
    engine.add_request("seeded", P, params)
    engine.step()
    filters = "minivllm.sampling.filters.TopKTopPFilter.probs"
    with monkeypatch.context() as patched:
        patched.setattr(filters, lambda self, logits: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.step()
    while engine.has_unfinished_requests():
        (output,) = engine.step()
    assert output.outputs[0].token_ids == want


def test_an_arrival_time_is_a_number(llm):
    for wrong in ("x", math.nan, math.inf, [1.0], True):
        with pytest.raises(ValueError, match="arrival_time must be"):
            llm.llm_engine.add_request("b", P, SamplingParams(), arrival_time=wrong)
    llm.llm_engine.check_integrity()
    assert not llm.llm_engine.has_unfinished_requests()


def test_what_a_caller_changes_later_changes_no_request(llm):
    engine = llm.llm_engine
    prompt, ids, bias = list(IDS), [5, 6, 7], {5: 1.0}
    params = SamplingParams(max_tokens=3, allowed_token_ids=ids, logit_bias=bias, temperature=0)
    want = one(llm, params).token_ids
    engine.add_request("mine", {"prompt_token_ids": prompt}, params)
    beams = BeamSearchParams(beam_width=2, max_tokens=3)
    engine.add_request("beams", P, beams)
    prompt[:], ids[:], beams.length_penalty = [0], [10**9], "x"
    bias[10**9] = math.nan
    outputs = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            output.prompt_token_ids.append(96)  # an output is the caller's, too
            outputs[output.request_id] = output
    assert outputs["mine"].outputs[0].token_ids == want


def test_ids_of_generate_never_collide_with_users(llm):
    engine = llm.llm_engine
    begun = llm.stream(P, SamplingParams(**GREEDY))  # its ids are chosen, nothing has begun
    for n in range(200):
        engine.add_request(str(n), P, SamplingParams(max_tokens=2, ignore_eos=True))
    assert len(llm.generate([P, P], SamplingParams(**GREEDY), use_tqdm=False)) == 2
    assert len(llm.generate(P, SamplingParams(n=2, max_tokens=2), use_tqdm=False)) == 1
    assert list(begun)[-1].finished
    while engine.has_unfinished_requests():
        engine.step()
    engine.check_integrity()


# -- what a model's files say ------------------------------------------------------------------


@pytest.mark.parametrize("eos", [50256, -1, [50256, -1], None])
def test_an_eos_outside_the_vocabulary_is_none(copy, eos):
    configure(copy, "config.json", eos_token_id=eos)
    (copy / "generation_config.json").unlink(missing_ok=True)
    assert load_config(copy).eos_token_ids == frozenset()
    llm = LLM(str(copy), skip_tokenizer_init=True, num_gpu_blocks_override=40)
    only_last = SamplingParams(temperature=0, min_tokens=2, max_tokens=3, logit_bias={96: 100})
    assert one(llm, only_last).token_ids == [96] * 3


def test_the_other_ends_of_a_text_say_which(tiny_chat, tmp_path):
    """Stop reasons as for Llama-3: None for the tokenizer's own, the id for another of the list."""
    directory = shutil.copytree(tiny_chat, tmp_path / "model")
    own = LLM(str(directory), num_gpu_blocks_override=40).get_tokenizer().eos_token_id
    configure(directory, "generation_config.json", eos_token_id=[own, 70])
    llm = LLM(str(directory), num_gpu_blocks_override=40)

    def end_with(token, **params):
        got = one(llm, SamplingParams(logit_bias={token: 100}, max_tokens=3, **params), "x")
        return got.finish_reason, got.stop_reason, len(got.token_ids)

    assert end_with(own) == ("stop", None, 1)
    assert end_with(70) == ("stop", 70, 1)
    assert end_with(70, ignore_eos=True) == ("length", None, 3)
    assert end_with(70, min_tokens=2, allowed_token_ids=[70, 71], temperature=0)[1] == 70
    beams = llm.beam_search("x", BeamSearchParams(beam_width=2, max_tokens=3))
    assert all(found.finish_reason for found in beams[0].sequences)


# -- bounds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
@pytest.mark.parametrize("most", [-1, 1000])
def test_more_logprobs_than_tokens_are_refused(tiny_qwen2, name, most):
    llm = LLM(
        str(tiny_qwen2), skip_tokenizer_init=True, num_gpu_blocks_override=40, max_logprobs=most
    )
    with pytest.raises(ValueError, match=f"{name} must be at most .*97.* got 500"):
        one(llm, SamplingParams(**{name: 500}))
    assert len(one(llm, SamplingParams(logprobs=-1, max_tokens=1)).logprobs[0]) == 97
    assert len(one(llm, SamplingParams(logprobs=97, max_tokens=1)).logprobs[0]) == 97


@pytest.mark.parametrize("n", [16385, 10**8, 10**30])
def test_a_huge_n_is_refused_by_arithmetic(n):
    with pytest.raises(ValueError, match=f"n must be an integer from 1 to 16384, got {n}"):
        SamplingParams(n=n)


@pytest.mark.parametrize("penalty", [1e3, -1e3, 2**31, 10**30, 10.5])
def test_a_length_penalty_beyond_what_floats_hold_is_refused(penalty):
    with pytest.raises(ValueError, match="length_penalty must be a number from -10 to 10"):
        BeamSearchParams(beam_width=2, max_tokens=3, length_penalty=penalty)


@pytest.mark.parametrize("penalty", [-10, 10, -10.0, 10.0])
def test_the_largest_length_penalties_run(llm, penalty):
    params = BeamSearchParams(beam_width=2, max_tokens=100, length_penalty=penalty)
    assert len(llm.beam_search(P, params)[0].sequences) == 2


# -- text --------------------------------------------------------------------------------------


class Letters:
    """A tokenizer whose tokens are bytes, as far as a stream needs one."""

    def decode(self, ids, **options):
        return bytes(ids).decode(errors="replace")


@pytest.mark.parametrize(("min_tokens", "kept"), [(0, 2), (1, 2), (2, 4), (3, 4), (4, None)])
@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_may_begin_within_min_tokens(min_tokens, kept, include):
    params = SamplingParams(stop="cd", min_tokens=min_tokens, include_stop_str_in_output=include)
    detokenizer = Detokenizer(Letters(), [], params)
    found = [detokenizer.append(token) for token in b"cdcdx"[:kept]]
    assert found == [*[None] * (len(found) - 1), "cd" if kept else None]
    text = "cdcdx"[: kept if include else kept - 2] if kept else "cdcdx"
    assert detokenizer.text == text


@pytest.fixture(params=[FastStream, SlowStream])
def stream_of(request, chat_llm):
    tokenizer = chat_llm.get_tokenizer()

    def ids(data: bytes):
        from tokenizers.pre_tokenizers import ByteLevel

        names = {b: c for c, b in zip(*_byte_names(), strict=True)}
        assert set(names.values()) == set(ByteLevel.alphabet())
        return [tokenizer.convert_tokens_to_ids(names[byte]) for byte in data]

    def text(before: bytes, after: bytes) -> str:
        stream = request.param(tokenizer, ids(before), SamplingParams())
        return "".join([*(stream.push(i) for i in ids(after)), stream.finish()])

    return text


def _byte_names():
    """GPT-2's characters for the 256 bytes, and the bytes."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in own]
    return [*map(chr, own), *(chr(256 + n) for n in range(len(others)))], own + others


E = "é".encode()
EARTH = "🌍".encode()


@pytest.mark.parametrize(
    ("before", "after", "want"),
    [
        (b"Hello" + E[:1], E[1:] + b"ab", "éab"),
        (b"Hello" + EARTH[:3], EARTH[3:] + b"ab", "🌍ab"),
        (EARTH[:1], EARTH[1:], "🌍"),
        (b"Hello" + E[:1], b"ab", "ab"),  # what was broken in the prompt is the prompt's
        (b"Hello\x80", b"ab", "ab"),
        (b"\x80\x80\x80\x80\x80", b"ab", "ab"),
        (b"Hell\x80\x80\x80\x80", b"ab" + E, "abé"),
        (b"Hello", b"\x80ab", "\N{REPLACEMENT CHARACTER}ab"),  # this one is the answer's
        (b"Hello", b"ab" + EARTH[:3], "ab"),  # never became a character
        (b"Hello", b"\x80", ""),
        (b"Hello", b"", ""),
    ],
)
def test_characters_across_the_ends_of_an_answer(stream_of, before, after, want):
    assert stream_of(before, after) == want


def test_an_answer_that_ends_inside_a_character(chat_llm):
    tokenizer = chat_llm.get_tokenizer()
    first, _ = tokenizer.encode("é")
    params = SamplingParams(
        max_tokens=3, allowed_token_ids=[first], temperature=0, logprobs=1, prompt_logprobs=0
    )
    got = one(chat_llm, params, "xé")
    assert got.text == ""
    assert [entry[first].decoded_token for entry in got.logprobs] == [""] * 3


def test_a_token_that_completes_a_character_is_that_character(chat_llm):
    tokenizer = chat_llm.get_tokenizer()
    ids = tokenizer.encode("a🌍é")
    steps = iter(ids[2:])  # the prompt ends inside the first character

    def next_of_them(output, logits):
        return torch.zeros_like(logits).index_fill(0, torch.tensor([next(steps)]), 50.0)

    params = SamplingParams(
        temperature=0, max_tokens=len(ids) - 2, logprobs=0, prompt_logprobs=0,
        logits_processors=[next_of_them],
    )  # fmt: skip
    output = chat_llm.generate({"prompt_token_ids": ids[:2]}, params, use_tqdm=False)[0]
    got = output.outputs[0]
    assert got.text == "🌍é"
    texts = [entry[token].decoded_token for entry, token in zip(got.logprobs, ids[2:], strict=True)]
    assert texts == ["", "", "🌍", "", "é"]
    assert output.prompt_logprobs[1][ids[1]].decoded_token == ""
    whole = chat_llm.generate("a🌍é", SamplingParams(prompt_logprobs=0, max_tokens=1), False)[0]
    texts = [e[t].decoded_token for e, t in zip(whole.prompt_logprobs[1:], ids[1:], strict=True)]
    assert texts == ["", "", "", "🌍", "", "é"]


@pytest.mark.parametrize(
    "call",
    [
        lambda llm, bad: llm.generate(["ok", bad], SamplingParams()),
        lambda llm, bad: llm.generate({"prompt": bad, "prompt_token_ids": [1]}),
        lambda llm, bad: llm.generate("ok", SamplingParams(bad_words=[bad])),
        lambda llm, bad: llm.chat([{"role": "user", "content": bad}]),
        lambda llm, bad: llm.chat([{"role": "user", "content": "ok"}], chat_template=bad),
        lambda llm, bad: llm.llm_engine.add_request(bad, "ok", SamplingParams()),
    ],
)
def test_lone_surrogates_are_refused_by_name(chat_llm, call):
    named = "prompt 1 of 2: prompt|prompt|bad_words|message|chat_template|request_id"
    with pytest.raises(ValueError, match=rf"({named}).* surrogate"):
        call(chat_llm, "a\ud800b")
    assert not chat_llm.llm_engine.has_unfinished_requests()


# -- counting ----------------------------------------------------------------------------------


def test_ranks_count_equals_as_vllm_does():
    logits = torch.tensor([[3.0, 3.0, 1.0]] * 3)
    found = gather_logprobs(logits, torch.tensor([0, 1, 2]), [0, 0, 0])
    assert [one.rank for one in found] == [2, 2, 3]


def test_preempted_requests_are_counted_apart():
    stats = PrefixCacheStats()
    stats.record(num_tokens=10, num_hits=4, preempted=False)
    stats.record(num_tokens=14, num_hits=8, preempted=True)
    assert (stats.requests, stats.queries, stats.hits) == (1, 10, 4)
    assert (stats.preempted_requests, stats.preempted_queries, stats.preempted_hits) == (1, 14, 8)


def test_the_hit_rate_is_that_of_recent_requests():
    metrics = CachingMetrics(max_recent_requests=3)
    for hits in (0, 10, 10, 10):
        metrics.observe(num_tokens=10, num_hits=hits)
    assert (metrics.hits, metrics.queries) == (30, 30)


def test_a_preemption_changes_no_hit_rate(tiny_qwen2):
    llm = LLM(
        str(tiny_qwen2), skip_tokenizer_init=True, block_size=4, max_model_len=40,
        num_gpu_blocks_override=14, preemption_mode="recompute",
    )  # fmt: skip
    prompts = [{"prompt_token_ids": [i, *IDS]} for i in range(20, 24)]
    llm.generate(prompts, SamplingParams(max_tokens=20, ignore_eos=True), use_tqdm=False)
    assert llm.llm_engine.scheduler.num_preemptions > 0
    stats = llm.llm_engine.scheduler.kv_manager.prefix_cache.stats
    assert (stats.requests, stats.queries) == (4, 40)
    assert stats.preempted_requests > 0
    assert stats.preempted_queries > 0


def test_an_empty_queue_gives_nothing_out():
    queue = FreeKVCacheBlockQueue([])
    with pytest.raises(ValueError, match="the free queue is empty"):
        queue.popleft()
    assert list(queue) == []
    assert queue.num_free_blocks == 0


# -- refusals that name the field --------------------------------------------------------------

ARRAYS = [np.arange(3), torch.arange(3), np.ones((2, 2))]


@pytest.mark.parametrize(
    ("name", "value"),
    [("tokenizer", 5), ("tokenizer", ["a"]), ("load_format", []), ("load_format", {}),
     *((name, array) for array in ARRAYS
       for name in ("dtype", "device", "quantization", "seed", "tokenizer", "max_num_seqs",
                    "preemption_mode", "attention_backend", "hf_overrides", "trust_remote_code",
                    "tensor_parallel_size", "scheduling_policy"))],
)  # fmt: skip
def test_an_engine_argument_is_named(tiny_qwen2, name, value):
    with pytest.raises(ValueError, match=f"{name} must be"):
        LLM(str(tiny_qwen2), **{"skip_tokenizer_init": True, name: value})


@pytest.mark.parametrize("name", ["model", "tokenizer"])
def test_a_name_longer_than_names_are(tiny_qwen2, name):
    with pytest.raises(FileNotFoundError, match=f"{name} 'aaaa"):
        LLM(**{"model": str(tiny_qwen2), name: "a" * 5000})


@pytest.mark.parametrize(
    "name", ["n", "seed", "truncate_prompt_tokens", "flat_logprobs", "best_of", "stop_token_ids",
             "stop", "logprobs", "temperature", "detokenize", "skip_reading_prefix_cache",
             "output_kind", "logit_bias", "extra_args"]
)  # fmt: skip
@pytest.mark.parametrize("array", ARRAYS)
def test_a_sampling_parameter_is_named(name, array):
    with pytest.raises(ValueError, match=name):
        SamplingParams(**{name: array})


@pytest.mark.parametrize("ids", [5, [[]], [5], None, {"a": 1}, np.arange(3)])
def test_ids_to_abort_are_strings(llm, ids):
    with pytest.raises(ValueError, match="request_id"):
        llm.llm_engine.abort_request(ids)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [({"chat_template": "{{ 1/0 }}"}, "chat template"), ({"chat_template": 5}, "chat_template"),
     ({"tools": [len]}, "tools"), ({"tools": 5}, "tools"),
     ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
     ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
     ({"add_generation_prompt": "x"}, "add_generation_prompt"),
     ({"continue_final_message": np.arange(3)}, "continue_final_message")],
)  # fmt: skip
def test_what_a_chat_cannot_take_is_named(chat_llm, arguments, named):
    with pytest.raises(ValueError, match=named):
        chat_llm.chat([{"role": "user", "content": "hi"}], SamplingParams(), False, **arguments)


def test_a_recorded_prompt_holds_what_a_block_can_name():
    config = {"block_size": 4, "num_gpu_blocks": 9, "max_num_batched_tokens": 8, "max_num_seqs": 2,
              "long_prefill_token_threshold": 0, "max_model_len": 30, "policy": "fcfs",
              "enable_prefix_caching": True, "enable_chunked_prefill": True}  # fmt: skip
    request = {"id": "a", "arrival_step": 0, "prompt_token_ids": [1, 2**63] * 3, "max_tokens": 2}
    with pytest.raises(ValueError, match=r"requests\[0\]\['prompt_token_ids'\]"):
        replay({"config": config, "requests": [request]})


# -- small faces -------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [None, False, 0, "", []])
def test_any_falsy_value_shows_no_bar(llm, nothing, capsys):
    assert llm.generate(P, SamplingParams(**GREEDY), use_tqdm=nothing)[0].finished
    assert capsys.readouterr().err == ""


def test_one_priority_for_all(tiny_chat):
    llm = LLM(str(tiny_chat), num_gpu_blocks_override=60, scheduling_policy="priority")
    params = SamplingParams(max_tokens=1)
    assert len(llm.generate(["a", "b"], params, use_tqdm=False, priority=1)) == 2
    talk = [{"role": "user", "content": "hi"}]
    assert len(llm.chat([talk, talk], params, use_tqdm=False, priority=[2, 1])) == 2
    assert len(llm.chat(talk, params, use_tqdm=False, priority=3)) == 1


def test_a_template_gets_arguments_of_its_own(chat_llm):
    template = "{{ messages[0].content }}{% if not enable_thinking %}!{% endif %}"
    for thinking, want in ((True, "hi"), (False, "hi!")):
        output = chat_llm.chat(
            [{"role": "user", "content": "hi"}], SamplingParams(max_tokens=1), use_tqdm=False,
            chat_template=template, chat_template_kwargs={"enable_thinking": thinking},
        )[0]  # fmt: skip
        assert output.prompt == want


def test_older_scripts_name_the_task(tiny_qwen2):
    arguments = {"skip_tokenizer_init": True, "num_gpu_blocks_override": 40}
    assert LLM(str(tiny_qwen2), task="generate", **arguments)
    assert LLM(str(tiny_qwen2), task="embed", **arguments).embed([[5]], use_tqdm=False)


def test_a_template_is_a_file_or_the_text_itself(tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}")
    assert load_chat_template(None) is None
    assert load_chat_template(file) == load_chat_template(str(file)) == "{{ messages }}"
    assert load_chat_template("{{ x }}") == "{{ x }}"
    assert load_chat_template(str(file), is_literal=True) == str(file)
    with pytest.raises(ValueError, match=r"chat_template .*missing\.jinja"):
        load_chat_template("missing.jinja")
    with pytest.raises(FileNotFoundError):
        load_chat_template(tmp_path / "missing.jinja")
    with pytest.raises(TypeError, match="chat_template"):
        load_chat_template(file, is_literal=True)
