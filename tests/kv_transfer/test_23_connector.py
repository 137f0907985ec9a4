"""Two engines and a folder: a prompt that one computes is continued by the other."""

import os
import random
import shutil
import threading
import time

import pytest
import torch
from helpers import examples, make_llm, workers_of, workload
from hypothesis import given
from hypothesis import strategies as st
from two_engines import (
    LIMITS,
    asking,
    engine,
    go_on,
    greedy,
    ids_of,
    prefill,
    prompt_tokens_computed,
)

from minivllm import SamplingParams
from minivllm.kv_transfer.base import KVConnectorBase, KVConnectorMetadata, KVConnectorOutput
from minivllm.kv_transfer.example_connector import ExampleConnector
from minivllm.kv_transfer.layer_files import LayerFiles, sweep


@pytest.mark.parametrize("cache", ["auto", "int8_per_token_head", "fp8_e4m3"])
def test_blocks_arrive_as_they_were_sent_and_one_token_is_computed(tiny_qwen2, tmp_path, cache):
    prompts = [[5] * 13, [6, 7] * 8]
    sender = engine(tiny_qwen2, tmp_path, "kv_producer", kv_cache_dtype=cache)
    receiver = engine(tiny_qwen2, tmp_path, "kv_consumer", kv_cache_dtype=cache, trace=True)
    asked = prefill(sender, prompts)
    files = sorted(tmp_path.glob("*/rank_0/*.safetensors"))
    assert len(files) == 2 * 2  # prompts, layers
    # 4 blocks of 4 positions; K and V of 2 heads of 8; int8 has a float32 for each head
    numbers = 2 * 4 * 4 * 2 * 8
    size = {"auto": 4 * numbers, "fp8_e4m3": numbers, "int8_per_token_head": numbers * 3 // 2}
    assert all(0 <= f.stat().st_size - size[cache] < 400 for f in files)
    params = [greedy()] * 2
    got = go_on(receiver, prompts, params, asked)
    alone = make_llm(tiny_qwen2, kv_cache_dtype=cache, **LIMITS)
    want = alone.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    assert ids_of(got) == ids_of(want)
    assert prompt_tokens_computed(receiver) == {"0": 1, "1": 1}
    assert [output.num_cached_tokens for output in got] == [12, 15]


def test_bytes_are_the_same(tiny_qwen2, tmp_path):
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    sender = engine(tiny_qwen2, tmp_path, "kv_both")
    receiver = engine(tiny_qwen2, tmp_path, "kv_both")
    asked = prefill(sender, [prompt])
    go_on(receiver, [prompt], [greedy(1)], asked)
    caches = [workers_of(llm)[0].model_runner.kv_cache for llm in (sender, receiver)]
    for mine, theirs in zip(*(cache.layers for cache in caches), strict=True):
        for sent, received in zip(mine, theirs, strict=True):
            # the first blocks of either pool; the last token is computed by both
            parts = [tensor[1:3].flatten(0, 1)[:7] for tensor in (sent, received)]
            assert torch.equal(*parts)


@examples(8)
@given(data=st.data())
def test_any_mixture_says_what_one_engine_says(tiny_qwen2, tmp_path_factory, data):
    """Chunks, shared prefixes, tight pools on either side, n, and requests beside."""
    draw = data.draw
    folder = tmp_path_factory.mktemp("shared")
    sides = [
        {
            "num_gpu_blocks_override": draw(st.sampled_from([18, 40])),
            "max_num_batched_tokens": draw(st.sampled_from([7, 64])),
            "enable_prefix_caching": draw(st.booleans()),
        }
        for _ in range(2)
    ]
    sender = engine(tiny_qwen2, folder, "kv_producer", **sides[0])
    receiver = engine(tiny_qwen2, folder, "kv_consumer", trace=True, **sides[1])
    rng = random.Random(draw(st.integers(0, 99)))
    prompts, params = workload(rng, draw(st.integers(1, 6)), 97, 40)
    stem = [rng.randrange(97) for _ in range(12)]
    prompts = [stem[: draw(st.sampled_from([0, 12]))] + prompt[:20] for prompt in prompts]
    fetched = [draw(st.booleans()) for _ in prompts]
    asked = prefill(sender, prompts)
    asked = [a if f else None for a, f in zip(asked, fetched, strict=True)]
    params = [SamplingParams(temperature=0, max_tokens=p.max_tokens, ignore_eos=True)
              if not p.seed else p for p in params]  # fmt: skip
    got = go_on(receiver, prompts, params, asked)
    alone = make_llm(tiny_qwen2, **LIMITS)
    plain = [asking(p, None) for p in params]
    want = alone.generate([{"prompt_token_ids": p} for p in prompts], plain, use_tqdm=False)
    assert ids_of(got) == ids_of(want)
    computed = prompt_tokens_computed(receiver)
    for index, is_fetched in enumerate(fetched):
        if is_fetched and str(index) in computed:
            assert computed[str(index)] == 1
    for llm in (sender, receiver):
        llm.llm_engine.engine_core.check_integrity()
        assert llm.llm_engine.scheduler.kv_manager.usage == 0


@pytest.mark.parametrize("backend", ["together", "mp"])
def test_each_rank_sends_its_own_heads(tiny_qwen2, tmp_path, backend):
    ranks = {"tensor_parallel_size": 2, "distributed_executor_backend": backend}
    prompts = [[8, 9] * 7, [4] * 9]
    sender = engine(tiny_qwen2, tmp_path, "kv_producer", **ranks)
    receiver = engine(tiny_qwen2, tmp_path, "kv_consumer", trace=True, **ranks)
    asked = prefill(sender, prompts)
    assert len(list(tmp_path.glob("*/rank_1/*.safetensors"))) == 2 * 2
    got = go_on(receiver, prompts, [greedy()] * 2, asked)
    alone = make_llm(tiny_qwen2, **LIMITS, **ranks)
    want = alone.generate([{"prompt_token_ids": p} for p in prompts], greedy(), use_tqdm=False)
    assert ids_of(got) == ids_of(want)
    assert prompt_tokens_computed(receiver) == {"0": 1, "1": 1}
    for llm in (sender, receiver, alone):
        llm.llm_engine.engine_core.shutdown()


# -- transfers beside steps, and within one --------------------------------------------------------


class SlowFiles(LayerFiles):
    """Files that take a while for each layer, until they are let go."""

    go = threading.Event()

    def _read(self, transfer):
        self.go.wait(20)
        return super()._read(transfer)


def test_others_get_their_tokens_while_a_transfer_takes_long(tiny_qwen2, tmp_path):
    sender = engine(tiny_qwen2, tmp_path, "kv_producer")
    receiver = engine(tiny_qwen2, tmp_path, "kv_consumer")
    (asked,) = prefill(sender, [[5] * 13])
    files = workers_of(receiver)[0].kv_transfer.connector._files
    files.__class__ = SlowFiles
    SlowFiles.go.clear()
    llm_engine = receiver.llm_engine
    llm_engine.add_request("slow", {"prompt_token_ids": [5] * 13}, asking(greedy(), asked))
    llm_engine.add_request("other", {"prompt_token_ids": [6] * 9}, greedy(8))
    ended = []
    while "other" not in ended:
        ended += [output.request_id for output in llm_engine.step() if output.finished]
        llm_engine.engine_core.check_integrity()
    assert ended == ["other"]
    SlowFiles.go.set()
    while llm_engine.has_unfinished_requests():
        ended += [output.request_id for output in llm_engine.step() if output.finished]
    assert ended == ["other", "slow"]


class HostMemory(KVConnectorBase):
    """A connector of a reader's own: prompts' blocks in a dict, put into blocks inside the step."""

    kept: dict = {}  # noqa: RUF012 (of both engines)
    calls: list = []  # noqa: RUF012

    def get_num_new_matched_tokens(self, seq, num_computed_tokens):
        known = self.kept.get(tuple(seq.request.prompt_token_ids))
        return (0 if known is None else seq.num_prompt_tokens - num_computed_tokens), False

    def update_state_after_alloc(self, seq, block_ids, num_external_tokens):
        self.load = tuple(seq.request.prompt_token_ids), block_ids

    def build_connector_meta(self, scheduler_output):
        metadata = KVConnectorMetadata()
        metadata.load = vars(self).pop("load", None)
        metadata.save = [
            (tuple(new.token_ids), scheduler_output.new_block_ids[new.seq_id][0])
            for new in scheduler_output.scheduled_new_reqs
        ]
        return metadata

    def register_kv_caches(self, kv_caches):
        self.layers = kv_caches

    def start_load_kv(self, metadata):
        self.metadata = metadata

    def wait_for_layer_load(self, layer_name):
        if self.metadata.load is not None:
            prompt, block_ids = self.metadata.load
            for part, cache in self.layers[layer_name].items():
                cache[block_ids] = self.kept[prompt][layer_name, part]
            self.calls.append(layer_name)

    def save_kv_layer(self, layer_name, metadata):
        for prompt, block_ids in metadata.save:
            for part, cache in self.layers[layer_name].items():
                kept = self.kept.setdefault(prompt, {})
                kept.setdefault((layer_name, part), cache[block_ids].clone())


def test_a_connector_of_ones_own_loads_inside_the_step(tiny_qwen2):
    HostMemory.kept.clear()
    config = {"kv_connector": HostMemory, "kv_role": "kv_both"}
    prompt = [{"prompt_token_ids": [3, 1, 4, 1, 5, 9, 2, 6, 5]}]
    first = make_llm(tiny_qwen2, kv_transfer_config=config, **LIMITS)
    want = first.generate(prompt, greedy(), use_tqdm=False)
    second = make_llm(tiny_qwen2, kv_transfer_config=config, **LIMITS)
    got = second.generate(prompt, greedy(), use_tqdm=False)
    assert ids_of(got) == ids_of(want)
    assert got[0].num_cached_tokens == 8
    assert sorted(set(HostMemory.calls)) == [f"model.layers.{i}.self_attn" for i in range(2)]


# -- what can go wrong -----------------------------------------------------------------------------


def broken(how, folder, monkeypatch):
    """Break what was sent, in one of several ways."""
    files = sorted(folder.glob("*/rank_0/*.safetensors"))
    match how:
        case "truncated":
            files[0].write_bytes(files[0].read_bytes()[:-20])
        case "empty":
            files[0].write_bytes(b"")
        case "a layer is missing":
            files[0].unlink()
        case "another form":
            from safetensors.torch import save_file

            save_file({"key": torch.zeros(1), "value": torch.zeros(1)}, files[0])
        case "never whole":
            shutil.rmtree(files[0].parent)
        case "gone on the way":
            found = LayerFiles._start_promised

            def gone(self, output):
                for path in folder.iterdir():
                    shutil.rmtree(path)
                found(self, output)

            monkeypatch.setattr(LayerFiles, "_start_promised", gone)


@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize(
    "how",
    ["truncated", "empty", "a layer is missing", "another form", "never whole", "gone on the way"],
)
def test_what_does_not_come_costs_its_request_alone(tiny_qwen2, tmp_path, monkeypatch, how, policy):
    prompts = [[5] * 13, [7] * 6]
    sender = engine(tiny_qwen2, tmp_path, "kv_producer")
    receiver = engine(tiny_qwen2, tmp_path, "kv_consumer", policy, {"load_timeout": 0.2})
    asked = prefill(sender, prompts[:1])
    broken(how, tmp_path, monkeypatch)
    started = time.monotonic()
    got = go_on(receiver, prompts, [greedy()] * 2, [*asked, None])
    assert time.monotonic() - started < 30
    alone = make_llm(tiny_qwen2, **LIMITS)
    want = alone.generate([{"prompt_token_ids": p} for p in prompts], greedy(), use_tqdm=False)
    assert ids_of(got)[1] == ids_of(want)[1]
    if policy == "recompute":
        assert ids_of(got)[0] == ids_of(want)[0]
    else:
        assert [c.finish_reason for c in got[0].outputs] == ["error"]
        assert got[0].outputs[0].token_ids == []
    receiver.llm_engine.engine_core.check_integrity()
    assert receiver.llm_engine.scheduler.kv_manager.usage == 0


def test_a_folder_that_cannot_be_written_any_more_keeps_no_block(tiny_qwen2, tmp_path, monkeypatch):
    def full(tensors, path):
        raise OSError(28, "No space left on device")

    sender = engine(tiny_qwen2, tmp_path / "shared", "kv_producer")
    monkeypatch.setattr("safetensors.torch.save_file", full)
    prefill(sender, [[5] * 13])
    assert not list((tmp_path / "shared").glob("*/rank_*"))
    assert sender.llm_engine.scheduler.kv_manager.usage == 0
    shutil.rmtree(tmp_path / "shared")
    assert prefill(sender, [[6] * 13]) == [None]  # who goes on computes it


def test_files_that_were_not_used_are_deleted(tmp_path):
    old, new = tmp_path / ("a" * 64), tmp_path / ("b" * 64)
    for folder in (old, new):
        (folder / "rank_0").mkdir(parents=True)
    (tmp_path / "something else").mkdir()
    past = time.time() - 100
    os.utime(old, (past, past))
    sweep(tmp_path, keep_for=50)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b" * 64, "something else"]


def step_for_ever(llm_engine):
    while True:
        llm_engine.step()


def test_a_step_that_fails_drops_what_is_under_way(tiny_qwen2, tmp_path, monkeypatch):
    sender = engine(tiny_qwen2, tmp_path, "kv_producer")
    receiver = engine(tiny_qwen2, tmp_path, "kv_consumer")
    prompts = [[5] * 13, [7] * 6]
    asked = prefill(sender, prompts[:1])
    llm_engine = receiver.llm_engine
    llm_engine.add_request("a", {"prompt_token_ids": prompts[0]}, asking(greedy(), asked[0]))
    llm_engine.add_request("b", {"prompt_token_ids": prompts[1]}, greedy())
    runner = workers_of(receiver)[0].model_runner
    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(runner, "prepare_inputs", lambda plan: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                step_for_ever(llm_engine)
        llm_engine.engine_core.check_integrity()
        llm_engine.step()
        llm_engine.engine_core.check_integrity()
    outputs = {}
    while llm_engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in llm_engine.step()}
        llm_engine.engine_core.check_integrity()
    alone = make_llm(tiny_qwen2, **LIMITS)
    want = alone.generate([{"prompt_token_ids": p} for p in prompts], greedy(), use_tqdm=False)
    assert ids_of([outputs["a"], outputs["b"]]) == ids_of(want)


NAME = "0" * 64


@pytest.mark.parametrize(
    ("role", "params", "message"),
    [
        ("kv_consumer", {"do_remote_prefill": True}, "remote_name"),
        ("kv_consumer", {"do_remote_prefill": True, "remote_name": 7}, "remote_name"),
        ("kv_consumer", {"do_remote_prefill": True, "remote_name": NAME}, "has another prompt"),
        ("kv_consumer", {"do_remote_prefill": "yes"}, "true or false"),
        ("kv_consumer", {"do_remote_decode": True}, "it sends nothing"),
        ("kv_producer", {"do_remote_prefill": True, "remote_name": NAME}, "it fetches nothing"),
        ("kv_both", {"do_remote_prefill": True, "do_remote_decode": True}, "one of them"),
    ],
)
def test_a_request_that_asks_for_what_cannot_be_is_refused_alone(
    tiny_qwen2, tmp_path, role, params, message
):
    llm = engine(tiny_qwen2, tmp_path, role)
    prompt = {"prompt_token_ids": [1, 2, 3]}
    with pytest.raises(ValueError, match=message):
        llm.generate([prompt], asking(greedy(), params), use_tqdm=False)
    assert len(llm.generate([prompt], greedy(), use_tqdm=False)) == 1


def test_files_that_are_gone_are_refused(tiny_qwen2, tmp_path):
    sender = engine(tiny_qwen2, tmp_path, "kv_both")
    asked = prefill(sender, [[5] * 13])
    shutil.rmtree(tmp_path / asked[0]["remote_name"])
    with pytest.raises(ValueError, match="are gone"):
        go_on(sender, [[5] * 13], [greedy()], asked)
    other = engine(tiny_qwen2, tmp_path, "kv_consumer", kv_cache_dtype="fp8")
    with pytest.raises(ValueError, match="kv_cache_dtype"):
        go_on(other, [[5] * 13], [greedy()], prefill(sender, [[5] * 13]))


@pytest.mark.parametrize(
    ("config", "kwargs", "message"),
    [
        ({"kv_connector": "NixlConnector", "kv_role": "kv_both"}, {}, "Unsupported connector type"),
        ({"kv_connector": ExampleConnector}, {}, "Please specify kv_role when kv_connector"),
        ({"kv_connector": "ExampleConnector", "kv_role": "both"}, {}, "Unsupported kv_role: both"),
        ({"kv_conector": "ExampleConnector"}, {}, r"kv_transfer_config\['kv_conector'\]"),
        ({"kv_load_failure_policy": "wait"}, {}, "kv_load_failure_policy"),
        ("ExampleConnector", {}, "kv_transfer_config"),
        ({}, {"async_scheduling": True}, "beside async_scheduling=True"),
        ({}, {"pipeline_parallel_size": 2}, "beside pipeline_parallel_size"),
        ({"kv_connector_extra_config": {"path": 1}}, {}, r"extra_config\['path'\]"),
        ({"kv_connector_extra_config": {"load_timeout": 0}}, {}, "above 0"),
        ({"kv_connector_extra_config": {"load_timeout": float("inf")}}, {}, "above 0"),
        ({"kv_connector_extra_config": {"keep_for": "600"}}, {}, "above 0"),
        ({"kv_connector_extra_config": {"keep_for": True}}, {}, "above 0"),
        ({"kv_connector_extra_config": {"shared_storage_path": ""}}, {}, "a folder"),
        ({"kv_connector_extra_config": {"shared_storage_path": "/tmp/\0"}}, {}, "a folder"),
        ({"kv_connector_extra_config": [1]}, {}, "kv_connector_extra_config must be an object"),
        ({"kv_connector": 7, "kv_role": "kv_both"}, {}, "kv_connector must be a name or a class"),
        ({"kv_connector": dict, "kv_role": "kv_both"}, {}, "Unsupported connector type"),
        ({"kv_role": ["kv_both"]}, {}, "Unsupported kv_role"),
        ({"engine_id": 7}, {}, "engine_id must be a string"),
        (
            {"kv_connector_extra_config": {"shared_storage_path": "/proc/x"}},
            {},
            "cannot be written",
        ),
    ],
)
def test_a_config_that_is_wrong_is_named(tiny_qwen2, config, kwargs, message):
    if isinstance(config, dict) and "kv_connector" not in config:
        config = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"} | config
    with pytest.raises(ValueError, match=message):
        make_llm(tiny_qwen2, kv_transfer_config=config, **LIMITS, **kwargs)


def test_without_a_connector_there_is_none(tiny_qwen2):
    llm = make_llm(tiny_qwen2, kv_transfer_config={"kv_role": "kv_both"}, **LIMITS)
    assert llm.llm_engine.scheduler.remote_kvs is None
    assert workers_of(llm)[0].kv_transfer is None
    output = llm.generate([{"prompt_token_ids": [1]}], asking(greedy(), {"x": 1}), use_tqdm=False)
    assert output[0].kv_transfer_params is None


def test_a_message_says_if_anything_has_ended():
    assert not KVConnectorOutput()
    assert KVConnectorOutput(failed_recving={"a": "late"})
