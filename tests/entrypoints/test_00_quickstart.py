"""vLLM's face: what goes in, what comes out, and what bad input gets."""

import inspect
import json
import random
import shutil
from functools import partial
from itertools import pairwise
from typing import ClassVar

import pytest
import torch
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tqdm.auto import tqdm

from minivllm import LLM, CompletionOutput, EngineArgs, LLMEngine, RequestOutput, SamplingParams
from minivllm.engine.detokenizer import Detokenizer
from minivllm.trace.records import Finished

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_chat):
    return LLM(str(tiny_chat), num_gpu_blocks_override=200)


@pytest.fixture
def engine(tiny_chat):
    return LLMEngine.from_engine_args(EngineArgs(str(tiny_chat), num_gpu_blocks_override=200))


# -- what goes in ------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_prompt_form_means_the_same(llm):
    ids = llm.get_tokenizer().encode("Hi!")
    forms = ["Hi!", ["Hi!"], ids, [ids], {"prompt": "Hi!"}, {"prompt_token_ids": ids},
             [{"prompt_token_ids": ids}]]  # fmt: skip
    outputs = [llm.generate(form, GREEDY, use_tqdm=False) for form in forms]
    assert all(len(o) == 1 for o in outputs)
    assert len({tuple(o[0].outputs[0].token_ids) for o in outputs}) == 1
    assert outputs[0][0].prompt == "Hi!"
    assert outputs[2][0].prompt is None
    assert outputs[2][0].prompt_token_ids == ids


def test_results_are_in_prompt_order_whatever_finished_first(llm):
    prompts = [f"prompt {i}" for i in range(9)]
    params = [SamplingParams(temperature=0, max_tokens=9 - i, ignore_eos=True) for i in range(9)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [o.prompt for o in outputs] == prompts
    assert [len(o.outputs[0].token_ids) for o in outputs] == list(range(9, 0, -1))


def test_the_fields_of_an_output(llm):
    output = llm.generate("Hello", GREEDY, use_tqdm=False)[0]
    assert isinstance(output, RequestOutput)
    assert isinstance(output.outputs[0], CompletionOutput)
    assert output.finished
    assert (output.prompt, output.num_cached_tokens, output.lora_request) == ("Hello", 0, None)
    completion = output.outputs[0]
    assert (completion.index, completion.finish_reason, completion.stop_reason) == (
        0, "length", None,
    )  # fmt: skip
    assert completion.finished()
    decode = llm.get_tokenizer().decode
    whole = decode(completion.token_ids, skip_special_tokens=True)
    assert completion.text == whole.rstrip("\N{REPLACEMENT CHARACTER}")
    metrics = output.metrics
    assert metrics.arrival_time <= metrics.first_token_time <= metrics.finished_time
    assert metrics.time_to_first_token > 0


def test_default_sampling_params_are_vllms(llm):
    output = llm.generate("Hello", use_tqdm=False)[0]
    assert len(output.outputs[0].token_ids) <= 16
    params = SamplingParams()
    assert (params.temperature, params.top_p, params.max_tokens) == (1.0, 1.0, 16)


def test_a_model_may_bring_its_own_sampling_params(tiny_chat, tmp_path):
    directory = shutil.copytree(tiny_chat, tmp_path / "model")
    (directory / "generation_config.json").write_text('{"temperature": 0.3, "top_k": 7, "x": 1}')
    params = LLM(str(directory), num_gpu_blocks_override=200).get_default_sampling_params()
    assert (params.temperature, params.top_k, params.top_p) == (0.3, 7, 1.0)
    (directory / "generation_config.json").write_text("{oops")
    with pytest.raises(ValueError, match=r"generation_config\.json cannot be read"):
        LLM(str(directory))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({}, {"temperature": 0.3, "top_k": 7}),
        ({"generation_config": "vllm"}, {}),
        ({"override_generation_config": {"top_p": 0.5, "max_new_tokens": 3, "presence_penalty": 1}},
         {"temperature": 0.3, "top_k": 7, "top_p": 0.5, "max_tokens": 3, "presence_penalty": 1}),
        ({"override_generation_config": {"temperature": 0.9, "top_k": None, "do_sample": True}},
         {"temperature": 0.9, "top_k": 7}),
        ({"generation_config": "vllm", "override_generation_config": {"min_p": 0.1}},
         {"min_p": 0.1}),
        ({"generation_config": "another"}, {"top_k": 2, "frequency_penalty": 0.5}),
    ],
)  # fmt: skip
def test_the_source_of_sampling_defaults_can_be_chosen(
    tiny_chat, tmp_path, monkeypatch, words, expected
):
    directory = shutil.copytree(tiny_chat, tmp_path / "model")
    (directory / "generation_config.json").write_text('{"temperature": 0.3, "top_k": 7}')
    (tmp_path / "another").mkdir()
    own = {"top_k": 2, "frequency_penalty": 0.5, "eos_token_id": [3, 5]}
    (tmp_path / "another/generation_config.json").write_text(json.dumps(own))
    monkeypatch.chdir(tmp_path)
    llm = LLM(str(directory), num_gpu_blocks_override=200, **words)
    assert llm.get_default_sampling_params() == SamplingParams(**expected)
    ends = {3, 5} if words.get("generation_config") == "another" else set()
    assert (llm.llm_engine.model_config.eos_token_ids >= {3, 5}) == bool(ends)
    (output,) = llm.generate("abc", use_tqdm=False)
    assert len(output.outputs[0].token_ids) <= expected.get("max_tokens", 16)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"override_generation_config": {"temperature": -1}}, "temperature must be a number of at"),
        ({"override_generation_config": {"top_k": "x"}}, "top_k must be an integer"),
        ({"override_generation_config": [1]}, "override_generation_config must be a dict"),
        ({"generation_config": 5}, "generation_config must be a non-empty string"),
        ({"generation_config": "/no/such"}, "generation_config '/no/such' is not a directory"),
        ({"generation_config": "."}, "generation_config '.' has no generation_config.json"),
    ],
)
def test_sampling_defaults_that_cannot_be_are_refused_at_the_start(
    tiny_chat, tmp_path, monkeypatch, words, message
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        LLM(str(tiny_chat), num_gpu_blocks_override=200, **words)


def test_an_empty_list_of_prompts_gives_an_empty_list(llm):
    assert llm.generate([], GREEDY, use_tqdm=False) == []


def test_a_seeded_request_does_not_mind_its_neighbours(llm):
    params = SamplingParams(temperature=1.0, seed=11, max_tokens=8, ignore_eos=True)
    alone = llm.generate("abc", params, use_tqdm=False)[0].outputs[0].token_ids
    others = SamplingParams(temperature=1.3, max_tokens=8)
    crowd = llm.generate(["x", "abc", "yz"], [others, params, others], use_tqdm=False)
    assert crowd[1].outputs[0].token_ids == alone


def test_unseeded_requests_differ_but_a_new_engine_repeats_them(tiny_chat):
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    runs = []
    for seed in (0, 0, 1):
        llm = LLM(str(tiny_chat), num_gpu_blocks_override=200, seed=seed)
        outputs = llm.generate(["same", "same"], params, use_tqdm=False)
        runs.append([o.outputs[0].token_ids for o in outputs])
    assert runs[0] == runs[1] != runs[2]
    assert runs[0][0] != runs[0][1]


def test_chat_renders_the_template(llm):
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    output = llm.chat(messages, GREEDY, use_tqdm=False)[0]
    assert output.prompt == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    )
    assert output.prompt_token_ids.count(llm.get_tokenizer().eos_token_id) == 2
    many = llm.chat([messages, messages[1:]], GREEDY, use_tqdm=False)
    assert many[0].outputs[0].token_ids == output.outputs[0].token_ids
    assert many[1].prompt.startswith("<|im_start|>user")
    own = llm.chat(messages, GREEDY, chat_template="{{ messages[0].content }}!", use_tqdm=False)
    assert own[0].prompt == "S!"


def test_the_progress_bar_says_how_fast(llm, capsys):
    llm.generate(["a", "b"], GREEDY, use_tqdm=True)
    bar = capsys.readouterr().err
    assert "Processed prompts: 100%" in bar
    assert "est. speed input:" in bar
    assert "toks/s, output:" in bar


class Bar:
    """A progress bar with as much of tqdm's as is asked of one."""

    made: ClassVar[list] = []
    format_dict: ClassVar[dict] = {"elapsed": 1.0}
    postfix = ""

    def __init__(self, **kwargs):
        self.made += [kwargs]

    def update(self, n):
        self.made += [n]

    def close(self):
        self.made += ["closed"]


def test_a_progress_bar_of_ones_own_gets_vllms_four_arguments(llm, monkeypatch):
    monkeypatch.setattr(Bar, "made", [])
    llm.generate(["a", "b"], GREEDY, use_tqdm=Bar)
    first, *rest = Bar.made
    assert first == {
        "total": 2,
        "desc": "Processed prompts",
        "dynamic_ncols": True,
        "postfix": "est. speed input: 0.00 toks/s, output: 0.00 toks/s",
    }
    assert rest == [1, 1, "closed"]
    llm.generate(["a"], GREEDY, use_tqdm=lambda total, desc, dynamic_ncols, postfix: Bar())
    llm.generate(["a"], GREEDY, use_tqdm=partial(tqdm, disable=True))


@pytest.mark.parametrize(
    "use_tqdm",
    [
        lambda **kwargs: None,
        lambda **kwargs: kwargs,
        lambda **kwargs: type("NoClose", (Bar,), {"close": None})(),
        lambda **kwargs: type("NoTime", (Bar,), {"format_dict": {}})(),
        lambda **kwargs: type("NoDict", (Bar,), {"format_dict": None})(),
    ],
)
def test_a_function_that_gives_no_progress_bar_is_refused_by_name(llm, monkeypatch, use_tqdm):
    def added(*args, **kwargs):
        raise AssertionError("a request was added")

    monkeypatch.setattr(llm.llm_engine, "submit", added)
    message = "use_tqdm must be a function that returns a progress bar, with update, close and"
    with pytest.raises(ValueError, match=message):
        llm.generate(["a", "b"], GREEDY, use_tqdm=use_tqdm)
    assert not llm.llm_engine.has_unfinished_requests()


def test_what_the_engine_logs(tiny_chat, capsys, monkeypatch):
    import logging

    monkeypatch.setattr(logging.getLogger("minivllm"), "level", logging.INFO)
    logging.getLogger("minivllm.worker.worker").manager._clear_cache()
    LLM(str(tiny_chat), num_gpu_blocks_override=201, max_model_len=320, swap_space=0)
    out = capsys.readouterr().out
    assert "# GPU blocks: 201, # CPU blocks: 0" in out
    assert "Maximum concurrency for 320 tokens per request: 10.00x" in out


# -- text on its way out -----------------------------------------------------------------------


class ByteTokenizer:
    """Token = byte; enough to decode any text."""

    def decode(self, ids, skip_special_tokens=True):
        return bytes(ids).decode("utf-8", errors="replace")


def feed(text: str, **params):
    detokenizer = Detokenizer(ByteTokenizer(), [], SamplingParams(**params))
    pieces, shown = [], 0
    for byte in text.encode():
        found = detokenizer.append(byte)
        streamed = detokenizer.streamable(finished=False) if found is None else ""
        if found is None:
            pieces.append(streamed[shown:])
            shown = max(shown, len(streamed))
            continue
        break
    else:
        found = None
    detokenizer.finish()
    pieces.append(detokenizer.streamable(finished=True)[shown:])
    return detokenizer.text, found, pieces


@examples(100)
@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=4), max_size=3), st.booleans())
def test_pieces_of_a_stream_join_to_the_whole_text(text, stop, include):
    got, found, pieces = feed(text, stop=stop, include_stop_str_in_output=include)
    assert "".join(pieces) == got
    ends = {s: text.find(s) + len(s) for s in stop if s in text}
    if not ends:
        assert (got, found) == (text, None)
    else:
        assert ends[found] == min(ends.values())
        cut = ends[found] if include else ends[found] - len(found)
        assert got == text[:cut]


def test_a_character_of_several_tokens_is_released_whole():
    _, _, pieces = feed("é🌍")
    assert [p for p in pieces if p] == ["é", "🌍"]


def test_an_unfinished_character_at_the_end_is_not_shown():
    detokenizer = Detokenizer(ByteTokenizer(), [], SamplingParams())
    for byte in "a🌍".encode()[:3]:
        detokenizer.append(byte)
    assert detokenizer.text == "a"
    detokenizer.finish()
    assert detokenizer.text == "a"


def test_a_stop_string_across_tokens_is_never_streamed():
    text, found, pieces = feed("one STOP two", stop="STOP")
    assert (text, found) == ("one ", "STOP")
    assert "S" not in "".join(pieces)


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_in_the_engine(llm, include):
    full = llm.generate(
        "abc", SamplingParams(temperature=0, max_tokens=20, ignore_eos=True), use_tqdm=False
    )[0].outputs[0]
    stop = full.text[3:6]
    params = SamplingParams(
        temperature=0, max_tokens=20, ignore_eos=True, stop=[stop, "never there"],
        include_stop_str_in_output=include,
    )  # fmt: skip
    got = llm.generate("abc", params, use_tqdm=False)[0].outputs[0]
    at = full.text.find(stop)
    assert got.text == full.text[: at + len(stop) if include else at]
    assert (got.finish_reason, got.stop_reason) == ("stop", stop)
    assert full.token_ids[: len(got.token_ids)] == got.token_ids


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_is_in_the_ids_but_not_in_the_text(llm, include):
    full = llm.generate("abc", GREEDY, use_tqdm=False)[0].outputs[0]
    stop = next(t for t in full.token_ids[1:] if full.token_ids.index(t) > 0)
    at = full.token_ids.index(stop)
    params = SamplingParams(
        temperature=0, max_tokens=6, ignore_eos=True, stop_token_ids=[stop],
        include_stop_str_in_output=include,
    )  # fmt: skip
    got = llm.generate("abc", params, use_tqdm=False)[0].outputs[0]
    assert got.token_ids == full.token_ids[: at + 1]
    assert (got.finish_reason, got.stop_reason) == ("stop", stop)
    decode = llm.get_tokenizer().decode
    assert got.text == decode(full.token_ids[: at + include], skip_special_tokens=True)


def test_detokenize_false_returns_ids_only(llm):
    params = SamplingParams(temperature=0, max_tokens=4, detokenize=False)
    output = llm.generate("abc", params, use_tqdm=False)[0].outputs[0]
    assert output.text == ""
    assert output.token_ids


# -- the engine, step by step ------------------------------------------------------------------


def test_streaming_by_add_request_and_step(engine):
    engine.add_request("a", "Hello", GREEDY)
    engine.add_request("b", {"prompt_token_ids": [1, 2, 3]}, GREEDY)
    assert engine.get_num_unfinished_requests() == 2
    texts = {"a": [], "b": []}
    while engine.has_unfinished_requests():
        for output in engine.step():
            texts[output.request_id].append(output.outputs[0].text)
        engine.check_integrity()
    for seen in texts.values():
        assert len(seen) == 6
        assert all(later.startswith(earlier) for earlier, later in pairwise(seen))
    assert engine.step() == []


def test_abort_reports_abort_and_frees(engine):
    engine.add_request("a", "Hello", GREEDY)
    engine.add_request("b", "Hello", GREEDY)
    engine.step()
    (output,) = engine.abort_request(["a", "nobody"])
    assert (output.finished, output.outputs[0].finish_reason) == (True, "abort")
    assert len(output.outputs[0].token_ids) == 1
    engine.check_integrity()
    assert engine.abort_request("a") == []
    while engine.has_unfinished_requests():
        engine.step()
    pool = engine.scheduler.kv_manager.block_pool
    assert pool.num_free_blocks == pool.num_usable_blocks


def test_an_interrupted_generate_leaves_no_orphans(llm, monkeypatch):
    steps = iter([None, None])
    original = llm.llm_engine.step

    def interrupted():
        if next(steps, "stop") == "stop":
            raise KeyboardInterrupt
        return original()

    monkeypatch.setattr(llm.llm_engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], GREEDY, use_tqdm=False)
    monkeypatch.undo()
    assert not llm.llm_engine.has_unfinished_requests()
    llm.llm_engine.check_integrity()


# -- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"blok_size": 4}, "LLM has no argument 'blok_size'; did you mean 'block_size'"),
        ({"block_size": 0}, "block_size must be an integer of at least 1, got 0"),
        ({"max_num_batched_tokens": -5}, "max_num_batched_tokens must be .* got -5"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be .* got 0"),
        ({"max_num_seqs": 0}, "max_num_seqs must be .* got 0"),
        ({"max_num_seqs": True}, "max_num_seqs must be .* got True"),
        ({"max_model_len": 513}, "max_model_len must be at most the 512 .* got 513"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization must be .* got 1.5"),
        ({"dtype": "int8"}, "dtype must be one of .* got 'int8'"),
        ({"device": "tpu"}, "device must be one of .* got 'tpu'"),
        ({"seed": -1}, "seed must be .* got -1"),
        ({"trace": 1}, "trace must be True or False, got 1"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size must be .* from 1 .* got 0"),
        ({"distributed_executor_backend": "mpi"}, "distributed_executor_backend must be one of"),
        ({"tensor_parallel_size": 2, "distributed_executor_backend": "uni"}, "'mp' or 'together'"),
        ({"cpu_offload_gb": 2}, "cpu_offload_gb must be 0 in minivllm .* got 2"),
        ({"disable_log_stats": 0}, "disable_log_stats must be True or False, got 0"),
        ({"max_logprobs": -2}, "max_logprobs must be .* got -2"),
        ({"trust_remote_code": 1}, "trust_remote_code must be True or False"),
        ({"task": "sing"}, "task must be one of auto, generate, .* got 'sing'"),
        ({"task": "embed", "runner": "generate"}, "task='embed' contradicts runner='generate'"),
        ({"runner": "generate", "convert": "embed"}, "runner='generate' contradicts convert="),
        (
            {
                "task": "embed",
                "enable_chunked_prefill": True,
                "pooler_config": {"pooling_type": "MEAN"},
            },
            "enable_chunked_prefill must be False or None, .*pooling type MEAN",
        ),
        ({"num_gpu_blocks_override": 5}, "KV cache holds 64 tokens .* max_model_len=512"),
        ({"kv_cache_memory_bytes": 1000}, "KV cache holds 0 tokens .* max_model_len=512"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 100},
            "max_num_batched_tokens must be at least max_model_len=512",
        ),
        ({"tokenizer": "/no/such/place"}, "tokenizer '/no/such/place' is not a directory"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(tiny_chat, kwargs, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        LLM(str(tiny_chat), **kwargs)


def test_a_cache_of_exactly_one_sequence_is_enough(tiny_chat):
    llm = LLM(str(tiny_chat), num_gpu_blocks_override=5, max_model_len=64)
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    output = llm.generate({"prompt_token_ids": [1] * 60}, params, use_tqdm=False)[0]
    assert len(output.outputs[0].token_ids) == 4


def test_a_long_prompt_is_spoken_of_by_the_engine_alone(tiny_chat, monkeypatch):
    from transformers import tokenization_utils_base

    heard = []
    monkeypatch.setattr(tokenization_utils_base.logger, "warning", heard.append)
    llm = LLM(str(tiny_chat), num_gpu_blocks_override=200)
    llm.get_tokenizer().model_max_length = 512
    with pytest.raises(ValueError, match="has 600 tokens, but max_model_len is 512"):
        llm.generate("x" * 600, GREEDY, use_tqdm=False)
    assert not heard


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ({"prompt_token_ids": []}, "the prompt is empty"),
        ("x" * 512, "has 512 tokens, but max_model_len is 512"),
        ({"prompt_token_ids": [5, 99999]}, "got 99999"),
        ({"prompt_token_ids": [5, -1]}, "got -1"),
        ({"prompt_token_ids": [5, "a"]}, "got 'a'"),
        ({"prompt_token_ids": "abc"}, "must be a list of integers, got 'abc'"),
        ({"promt": "hi"}, "a prompt must be"),
        ({"prompt": "hi", "image": 1}, "no argument 'image'"),
        (3.5, "a prompt must be .* got 3.5"),
        (None, "a prompt must be .* got None"),
    ],
)
def test_one_bad_prompt_leaves_the_others_unharmed(llm, engine, prompt, message):
    with pytest.raises(ValueError, match=f"prompt 1 of 3: .*{message}"):
        llm.generate(["good", prompt, "good"], GREEDY, use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()
    engine.add_request("good", "Hello", GREEDY)
    engine.step()
    with pytest.raises(ValueError, match=message):
        engine.add_request("bad", prompt, GREEDY)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
        engine.check_integrity()
    assert len(outputs[-1].outputs[0].token_ids) == 6


def test_other_mistakes_in_a_call(llm):
    with pytest.raises(ValueError, match=r"len\(sampling_params\) must be 1, one for each"):
        llm.generate(["a"], [GREEDY, GREEDY], use_tqdm=False)
    with pytest.raises(ValueError, match="sampling_params must be a SamplingParams"):
        llm.generate(["a"], {"temperature": 0}, use_tqdm=False)
    with pytest.raises(
        ValueError, match=r"messages must be a non-empty list of messages.* got 'hello'"
    ):
        llm.chat("hello", GREEDY, use_tqdm=False)
    with pytest.raises(ValueError, match="a message must be a dict"):
        llm.chat([{"content": "hello"}], GREEDY, use_tqdm=False)
    with pytest.raises(ValueError, match=r"content must be text, .* got None"):
        llm.chat([{"role": "user"}], GREEDY, use_tqdm=False)
    with pytest.raises(ValueError, match="the chat template cannot render"):
        llm.chat([{"role": "user", "content": "x"}], GREEDY, chat_template="{% bad", use_tqdm=False)
    with pytest.raises(ValueError, match="priority must be an integer, or a list of them"):
        llm.generate("a", GREEDY, use_tqdm=False, priority="1")
    with pytest.raises(ValueError, match="model must be the path"):
        LLM(3)
    with pytest.raises(ValueError, match="every id in stop_token_ids"):
        llm.generate("a", SamplingParams(stop_token_ids=[10**6]), use_tqdm=False)


def test_a_request_id_in_use_is_refused(engine):
    engine.add_request("a", "Hello", GREEDY)
    with pytest.raises(ValueError, match="request_id 'a' is in use"):
        engine.add_request("a", "Hello again", GREEDY)
    assert engine.get_num_unfinished_requests() == 1


@pytest.mark.slow
def test_without_a_tokenizer_only_ids_go_in(tiny_qwen2):
    llm = LLM(str(tiny_qwen2), skip_tokenizer_init=True)
    with pytest.raises(ValueError, match="skip_tokenizer_init=True leaves no tokenizer"):
        llm.generate("text", use_tqdm=False)
    with pytest.raises(ValueError, match="chat needs a tokenizer"):
        llm.chat([{"role": "user", "content": "hi"}], use_tqdm=False)
    with pytest.raises(ValueError, match="stop must be empty when skip_tokenizer_init=True"):
        llm.generate([1, 2], SamplingParams(stop="x"), use_tqdm=False)


# -- broken checkpoints ------------------------------------------------------------------------


@pytest.fixture
def copy(tiny_qwen2, tmp_path):
    return shutil.copytree(tiny_qwen2, tmp_path / "model")


def load(directory):
    return LLM(str(directory), skip_tokenizer_init=True)


def edit_config(directory, **changes):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | changes))


def test_a_missing_directory():
    with pytest.raises(FileNotFoundError, match="'/no/such/model' is not a directory"):
        load("/no/such/model")


def test_a_directory_without_config(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        load(tmp_path)


def test_a_config_that_is_not_json(copy):
    (copy / "config.json").write_text("{oops")
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        load(copy)


def test_an_architecture_we_do_not_have(copy):
    edit_config(copy, architectures=["MambaForCausalLM"])
    with pytest.raises(ValueError, match=r"'MambaForCausalLM' is not supported; minivllm runs"):
        load(copy)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "mish"}, "hidden_act='mish'"),
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "rope_type='spiral'"),
    ],
)  # fmt: skip
def test_a_variant_we_do_not_have(copy, changes, message):
    edit_config(copy, **changes)
    with pytest.raises(ValueError, match=message):
        load(copy)


def test_no_weights(copy):
    (copy / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no \*\.safetensors"):
        load(copy)


def test_truncated_weights(copy):
    data = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(data[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors is broken or truncated"):
        load(copy)


def test_a_missing_shard(tiny_llama, tmp_path):
    copy = shutil.copytree(tiny_llama, tmp_path / "model")
    shard = sorted(copy.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=f"{shard.name} is missing"):
        load(copy)


def test_a_tensor_too_few_too_many_or_of_another_shape(copy):
    weights = load_file(copy / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({k: v for k, v in weights.items() if k != name}, copy / "model.safetensors")
    with pytest.raises(ValueError, match=f"lacks 1 tensors, the first is '{name}'"):
        load(copy)
    save_file(weights | {"model.extra": torch.zeros(1)}, copy / "model.safetensors")
    with pytest.raises(ValueError, match=r"has 1 unknown tensors, the first is 'model\.extra'"):
        load(copy)
    save_file(weights | {name: torch.zeros(3, 3)}, copy / "model.safetensors")
    with pytest.raises(ValueError, match=rf"{name}' has shape \(3, 3\)"):
        load(copy)


def test_a_directory_without_tokenizer(tiny_qwen2):
    with pytest.raises(ValueError, match="no tokenizer can be read"):
        LLM(str(tiny_qwen2))


# -- the trace ---------------------------------------------------------------------------------


def test_trace_is_off_unless_asked_for(llm):
    assert llm.trace is None


def test_the_trace_says_what_happened(tiny_qwen2):
    llm = LLM(
        str(tiny_qwen2), skip_tokenizer_init=True, trace=True, block_size=4, max_model_len=48,
        num_gpu_blocks_override=14, max_num_batched_tokens=9,
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    engine, rng = llm.llm_engine, random.Random(0)
    for i in range(4):
        engine.add_request(str(i), {"prompt_token_ids": [rng.randrange(96)] * (3 + i)}, params)
    manager, scheduler = engine.scheduler.kv_manager, engine.scheduler
    tokens = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens[output.request_id] = output.outputs[0].token_ids
        state = llm.trace.state_at(llm.trace.num_steps - 1)
        held = {s.seq_id: s.block_ids for s in state.sequences.values() if s.block_ids}
        assert held == {seq_id: t.block_ids for seq_id, t in manager.block_tables.items()}
        assert state.running == [s.seq_id for s in scheduler.running]
        assert state.waiting == [r.request_id for r in scheduler.waiting]
        assert state.num_free_blocks == manager.block_pool.num_free_blocks
        for seq in scheduler.sequences.values():
            assert state.sequences[seq.seq_id].token_ids == seq.token_ids
            assert state.sequences[seq.seq_id].num_computed_tokens == seq.num_computed_tokens
    preemptions = sum(s.num_preemptions for s in state.sequences.values())
    assert preemptions == scheduler.num_preemptions > 0
    assert [r.reason for r in llm.trace.of(Finished)] == ["length"] * 4
    for request_id, ids in tokens.items():
        assert state.sequences[request_id].token_ids[3 + int(request_id) :] == ids
    planned = [llm.trace.state_at(i, after="schedule") for i in range(llm.trace.num_steps)]
    assert max(s.num_scheduled_tokens for s in planned) == 9
    assert llm.trace.state_at(-1).waiting == ["0", "1", "2", "3"]
    with pytest.raises(ValueError, match="step must be between -1 and"):
        llm.trace.state_at(llm.trace.num_steps)
    with pytest.raises(ValueError, match="after must be"):
        llm.trace.state_at(0, after="lunch")
    llm.trace.clear()
    assert llm.trace.num_steps == 0


def test_vllms_argument_names():
    """The arguments that vLLM's offline examples pass are all here."""
    ours = inspect.signature(EngineArgs).parameters
    theirs = "model tokenizer tokenizer_mode skip_tokenizer_init trust_remote_code dtype seed " \
        "tensor_parallel_size quantization revision tokenizer_revision gpu_memory_utilization " \
        "swap_space enforce_eager max_model_len max_num_seqs max_num_batched_tokens block_size " \
        "enable_chunked_prefill enable_prefix_caching num_gpu_blocks_override hf_overrides " \
        "kv_cache_memory_bytes disable_log_stats cpu_offload_gb"  # fmt: skip
    assert not set(theirs.split()) - set(ours)
