# ruff: noqa: B023 (the functions are called at once)
"""Every door, every field, every hostile value: it runs, or a refusal names the field.

And then a known request gets its known answer. Single fields are tried with all values; mixtures
by hypothesis, more of them with ``HYPOTHESIS_PROFILE=nightly``.
"""

import copy
import json
import os
from dataclasses import fields
from functools import cache

import pytest
from hostile import HOSTILE, HOSTILE_JSON, STRINGS, names
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from minivllm import LLM, BeamSearchParams, EngineArgs, SamplingParams
from minivllm.cli import app
from minivllm.lab.sim import replay
from minivllm.lab.sim.__main__ import app as sim_app

pytestmark = pytest.mark.slow

SMALL = {"num_gpu_blocks_override": 40, "block_size": 4, "max_model_len": 48, "swap_space": 0.001}
KNOWN = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, logprobs=1)
SAMPLING_FIELDS = [f.name for f in fields(SamplingParams) if f.init]
BEAM_FIELDS = [f.name for f in fields(BeamSearchParams)]
TALK = [{"role": "user", "content": "hi"}]
# What is accepted is run, too; of each field a few values, at night all.
MANY = 10**9 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 3


class Door:
    """An engine, and its answers while no bad value has come."""

    def __init__(self, directory):
        self.llm = LLM(str(directory), **SMALL)
        self.want = self.answer()

    def answer(self):
        output = self.llm.generate(["known"], KNOWN, use_tqdm=False)[0].outputs[0]
        return output.token_ids, output.text

    def is_unharmed(self):
        assert not self.llm.llm_engine.has_unfinished_requests()
        self.llm.llm_engine.check_integrity()
        assert self.answer() == self.want
        assert self.llm.reset_prefix_cache()

    def run(self, *requests):
        """Through ``add_request`` and to the end, a bounded number of steps."""
        engine = self.llm.llm_engine
        for request in requests:
            engine.add_request(**request)
        for _ in range(200):
            if not engine.has_unfinished_requests():
                return
            engine.step()
        raise AssertionError("it never ends")


@pytest.fixture(scope="module")
def door(tiny_chat):
    door = Door(tiny_chat)
    yield door
    door.is_unharmed()


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    """A function of the user's that fails is logged with its traceback: hundreds of them here."""
    from minivllm.sampling.logits_processors import logger

    monkeypatch.setattr(logger, "exception", lambda *args: None)


def refused(call, *fields) -> bool:
    """Runs it. A refusal must name one of the fields; anything else that comes is a failure."""
    try:
        call()
    except AssertionError:
        raise
    except Exception as error:
        if names(error, *fields):
            return True
        raise AssertionError(f"{fields}: {type(error).__name__}: {error!s:.200}") from error
    return False


# -- parameters --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLING_FIELDS)
def test_sampling_params(door, name):
    accepted = []
    for value in HOSTILE:
        arguments = {"max_tokens": 3, name: value}
        refused(lambda: accepted.append(SamplingParams(**arguments)), name)
    for params in accepted[-MANY:]:
        refused(lambda: door.run({"request_id": "x", "prompt": "ab", "params": params}), name)
    door.is_unharmed()


@pytest.mark.parametrize("name", BEAM_FIELDS)
def test_beam_search_params(door, name):
    good = {"beam_width": 2, "max_tokens": 3}
    accepted = []
    for value in HOSTILE:
        arguments = {**good, name: value}
        refused(lambda: accepted.append(BeamSearchParams(**arguments)), name)
    for params in accepted[-MANY:]:
        refused(lambda: door.llm.beam_search("ab", params), name)
    door.is_unharmed()


@given(st.dictionaries(st.sampled_from(SAMPLING_FIELDS), st.sampled_from(HOSTILE), max_size=4))
def test_mixtures_of_sampling_params(door, arguments):
    def call():
        params = SamplingParams(**arguments)
        door.run({"request_id": "x", "prompt": "ab", "params": params})

    refused(call, *SAMPLING_FIELDS, "grow")
    door.is_unharmed()


@pytest.mark.parametrize("name", [f.name for f in fields(EngineArgs)])
def test_llm(tiny_qwen2, monkeypatch, name):
    def offline(*args, **kwargs):
        raise OSError("no network in this test")

    monkeypatch.setattr("minivllm.models.hub._hub", lambda: ("the hub", offline))
    good = {"model": str(tiny_qwen2), "skip_tokenizer_init": True, **SMALL}
    accepted = []
    for value in HOSTILE:
        arguments = {**good, name: value}
        if not refused(lambda: EngineArgs(**arguments), name):
            accepted.append(arguments)
    for arguments in accepted[-MANY:]:
        refused(lambda: serve(LLM(**arguments)), name, "num_gpu_blocks_override")


def serve(llm):
    prompt = {"prompt_token_ids": [1, 2, 3]}
    if llm.llm_engine.model_config.runner_type == "pooling":
        (output,) = llm.encode(prompt, use_tqdm=False)
    else:
        (output,) = llm.generate(prompt, SamplingParams(max_tokens=2), use_tqdm=False)
    assert output.finished
    llm.llm_engine.check_integrity()


# -- calls -------------------------------------------------------------------------------------


def test_generate(door):
    for value in HOSTILE:
        for name, *more in (
            ("prompts", "prompt"),
            ("sampling_params",),
            ("use_tqdm",),
            ("priority",),
        ):
            arguments = {"prompts": "ab", "sampling_params": KNOWN, "use_tqdm": False, name: value}
            if name == "use_tqdm" and callable(value):
                continue  # a bar of one's own: what it raises is its own
            refused(lambda: door.llm.generate(**arguments), name, *more)
        for key in ("prompt", "prompt_token_ids", "cache_salt"):
            prompt = {"prompt_token_ids": [1, 2], key: value}
            refused(lambda: door.llm.generate(prompt, KNOWN, False), key, "prompt")
        for arguments, name in (
            (([[1, 2, value]], KNOWN, False), "prompt"),
            (("a", [value], False), "sampling_params"),
            ((["a"], KNOWN, False, [value]), "priority"),
        ):
            refused(lambda: door.llm.generate(*arguments), name)
    door.is_unharmed()


def test_chat(door):
    for value in HOSTILE:
        for name in ("chat_template", "add_generation_prompt", "continue_final_message", "tools",
                     "chat_template_kwargs", "chat_template_content_format", "priority",
                     "sampling_params"):  # fmt: skip
            arguments = {"sampling_params": KNOWN, "use_tqdm": False, name: value}
            # a template may render nothing at all, or too much
            said = name, "chat template", "the prompt"
            refused(lambda: door.llm.chat(TALK, **arguments), *said)
        for messages in (value, [value], [[value]], [{"role": value, "content": "a"}],
                         [{"role": "user", "content": value}],
                         [{"role": "user", "content": [value]}],
                         [{"role": "user", "content": [{"type": "text", "text": value}]}],
                         [{"role": "user", "content": None, "tool_calls": value}],
                         [{"role": "user", "content": "a", "name": value}]):  # fmt: skip
            refused(
                lambda: door.llm.chat(messages, KNOWN, False), "message", "prompt", "tool_calls"
            )
    door.is_unharmed()


def test_add_request(door):
    good = {"request_id": "x", "prompt": "ab", "params": KNOWN}
    for value in HOSTILE:
        for name in ("request_id", "prompt", "params", "arrival_time", "priority"):
            refused(lambda: door.run({**good, name: value}), name)
    door.is_unharmed()


def test_abort_request(door):
    engine = door.llm.llm_engine
    for value in HOSTILE:
        engine.add_request("mine", "ab", KNOWN)
        engine.step()
        refused(lambda: engine.abort_request(value), "request_id")
        assert engine.get_num_unfinished_requests() == 1
        engine.check_integrity()
        engine.abort_request("mine")
    door.is_unharmed()


# -- recordings and commands -------------------------------------------------------------------

CONFIG = {"block_size": 4, "num_gpu_blocks": 9, "max_num_batched_tokens": 8, "max_num_seqs": 2,
          "long_prefill_token_threshold": 0, "max_model_len": 30, "policy": "fcfs",
          "enable_prefix_caching": True, "enable_chunked_prefill": True}  # fmt: skip
ENTRY = {"id": "a", "arrival_step": 0, "prompt_token_ids": [1, 2, 3], "max_tokens": 2,
         "priority": 0}  # fmt: skip
WORKLOAD = {"config": CONFIG, "requests": [ENTRY, {**ENTRY, "id": "b", "arrival_step": 1}]}


def spoiled(value):
    """The workload with one value replaced, and what a refusal must name."""
    yield value, "workload"
    for key in WORKLOAD:
        yield {**WORKLOAD, key: value}, key
    for key in CONFIG:
        yield {**WORKLOAD, "config": {**CONFIG, key: value}}, key
    for key in ENTRY:
        yield {**WORKLOAD, "requests": [{**ENTRY, key: value}, *WORKLOAD["requests"][1:]]}, key
    yield {**WORKLOAD, "requests": [value]}, "requests"
    yield {**WORKLOAD, "requests": [{**ENTRY, "prompt_token_ids": [1, value]}]}, "prompt_token_ids"


def test_sim_replay():
    want = replay(WORKLOAD)
    for value in HOSTILE:
        for workload, field in spoiled(value):
            refused(lambda: replay(workload), field, "max_model_len", "blocks")
    assert replay(copy.deepcopy(WORKLOAD)) == want


def test_sim_replay_of_a_file(tmp_path):
    file, out = tmp_path / "workload.json", tmp_path / "out.json"
    for value in HOSTILE_JSON:
        for workload, field in spoiled(value):
            file.write_text(json.dumps(workload))
            done = CliRunner().invoke(sim_app, ["replay", str(file), "--out", str(out)])
            assert done.exit_code in (0, 2), (field, value, done.exception)
    for data in (b"", b"\xff", b"[" * 10**5, b"\0", b'{"a": 1' + b"0" * 5000 + b"}"):
        file.write_bytes(data)
        done = CliRunner().invoke(sim_app, ["replay", str(file), "--out", str(out)])
        assert done.exit_code == 2, data[:20]
        assert "not JSON" in done.stderr


WORDS = [s for s in STRINGS if isinstance(s, str)] + ["-1", "1e400", str(10**30), "[]"]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ((sim_app, ["run", "--requests", "5"]),
         ["workload", "requests", "rate", "seed", "hardware", "model", "manager", "allocator",
          "policy", "num-blocks", "block-size", "gpu-memory-utilization", "max-model-len",
          "max-num-seqs", "max-num-batched-tokens", "max-concurrency"]),
        ((sim_app, ["waste", "--requests", "5"]), ["requests", "seed", "allocator"]),
        ((sim_app, ["sharing", "--requests", "5"]), ["requests", "seed"]),
        ((app, ["generate", "x", "--max-tokens", "1"]),
         ["model", "max-tokens", "temperature", "top-p", "top-k", "seed"]),
        ((app, ["chat", "--max-tokens", "1"]),
         ["model", "system", "max-tokens", "temperature", "top-p", "top-k", "seed"]),
    ],
    ids=["run", "waste", "sharing", "generate", "chat"],
)  # fmt: skip
def test_commands(tiny_chat, monkeypatch, command, options):
    def offline(*args, **kwargs):
        raise OSError("no network in this test")

    monkeypatch.setattr("minivllm.models.hub._hub", lambda: ("the hub", offline))
    monkeypatch.setattr("minivllm.models.hub.embedded_model_path", lambda: tiny_chat)
    # A model is loaded once, and not for each word of the other options.
    monkeypatch.setattr("minivllm.entrypoints.terminal.LLM", cache(LLM))
    monkeypatch.setattr("minivllm.lab.contiguous.manager.print", lambda *a: None, raising=False)
    which, arguments = command
    for option in options:
        for word in WORDS:
            if option == "requests" and word == str(10**30):
                continue  # it would do as it is told
            given = [*arguments, f"--{option}={word}"]
            done = CliRunner().invoke(which, given, input="\n")
            assert done.exit_code in (0, 2), (given, done.exception)
            if done.exit_code == 2:
                assert option in done.stderr or option.replace("-", "_") in done.stderr, (
                    given,
                    done.stderr,
                )
