"""A stage is a shorter model: what it holds, what it passes on, and what is refused."""

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from helpers import make_llm, workers_of
from safetensors.torch import load_file, save_file
from small_models import CONFIGS, make_model

from minivllm import LLM, SamplingParams
from minivllm.executor.exceptions import EngineDeadError
from minivllm.models.loader import load_config, load_model
from minivllm.scheduling.output import SchedulerOutput
from minivllm.trace.records import Scheduled, StepEnded
from minivllm.worker.profiling import full_step

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": list(range(3, 3 + n))} for n in (5, 12, 20)]


def together(pp, tp=1, backend="together"):
    sizes = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp}
    return sizes | {"distributed_executor_backend": backend}


def tokens(llm):
    found = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    return [output.outputs[0].token_ids for output in found]


@pytest.mark.parametrize(
    "name", ["llama", "llama-grouped-tied", "gemma3", "gpt2", "opt-gelu-untied"]
)
def test_each_tensor_is_on_one_stage_and_a_tied_embedding_is_the_head_too(tmp_path, name):
    """Embedding first, norm and head last, layers by the names that they have in the checkpoint."""
    family, changes, _ = CONFIGS[name]
    make_model(family, **changes).save_pretrained(tmp_path)
    whole = load_model(tmp_path, load_config(tmp_path), torch.float32, torch.device("cpu"))
    llm = make_llm(tmp_path, enforce_eager=True, **together(3))
    stages = [w.model.checkpoint_tensors() for w in workers_of(llm)]
    for tensor, want in whole.checkpoint_tensors().items():
        where = [number for number, held in enumerate(stages) if tensor in held]
        if tensor == whole.checkpoint_name("model.embed_tokens.weight"):
            assert where == ([0, 2] if whole.config.tie_word_embeddings else [0])
        elif tensor == whole.checkpoint_name("model.embed_positions.weight"):
            assert where == [0]
        elif tensor.startswith((whole.checkpoint_name("model.norm"), "lm_head")):
            assert where == [2]
        else:
            prefix = whole.checkpoint_name("model.layers.")
            assert where == [int(tensor.removeprefix(prefix).partition(".")[0])]
        assert all(torch.equal(stages[number][tensor], want) for number in where)


def test_a_partition_and_blocks_by_the_longest_stage(monkeypatch):
    """The embedded model's five layers: the memory for blocks is counted per rank."""
    memory = {"num_gpu_blocks_override": None, "kv_cache_memory_bytes": 2**22}
    one = LLM(max_model_len=100, **memory)
    for text, expected in (("", [3, 2]), ("1,4", [1, 4])):
        monkeypatch.setenv("MINIVLLM_PP_LAYER_PARTITION", text)
        llm = LLM(max_model_len=100, **memory, **together(2))
        runners = [worker.model_runner for worker in workers_of(llm)]
        assert [len(runner.kv_cache.data) for runner in runners] == expected
        num_bytes = one.llm_engine.worker.bytes_per_block // 5 * max(expected)
        assert llm.llm_engine.engine_core.kv_cache_config.num_blocks == 2**22 // num_bytes
        assert tokens(llm) == tokens(one)
    monkeypatch.setenv("MINIVLLM_PP_LAYER_PARTITION", "5")
    with pytest.raises(ValueError, match=r"len\(partitions\)=1 does not match pp_size=2"):
        LLM(max_model_len=100, **memory, **together(2))


def test_two_stages_are_busy_with_different_requests(tiny_qwen2):
    """A request whose token is on its way is passed over, and nothing splits a batch."""
    llm = make_llm(tiny_qwen2, max_num_batched_tokens=12, trace=True, **together(2))
    tokens(llm)
    plans = defaultdict(set)
    for record in llm.llm_engine.trace.of(Scheduled):
        plans[record.step].add(record.seq_id)
    ended = [record.plan - record.step for record in llm.llm_engine.trace.of(StepEnded)
             if record.plan is not None]  # fmt: skip
    assert set(ended) == {-1}  # each while the next one is in flight
    assert any(not plans[step] & plans[step + 1] for step in plans if step + 1 in plans)


def test_a_cache_in_float8_has_the_scales_of_a_stages_own_layers(tiny_qwen2, tmp_path):
    for file in tiny_qwen2.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    stored = load_file(tmp_path / "model.safetensors")
    for layer, scale in ((0, 0.5), (1, 0.25)):
        for kind in "kv":
            stored[f"model.layers.{layer}.self_attn.{kind}_scale"] = torch.tensor(scale)
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    llm = make_llm(tmp_path, kv_cache_dtype="fp8", **together(2))
    found = [worker.model_runner.kv_cache.layer(0).k_scale for worker in workers_of(llm)]
    assert found == [0.5, 0.25]
    assert tokens(llm) == tokens(make_llm(tmp_path, kv_cache_dtype="fp8"))


@pytest.mark.parametrize("quantization", ["int4", "int8_per_channel_weight_only"])
def test_quantized_weights_have_stages(tiny_qwen2, quantization):
    one, two = (make_llm(tiny_qwen2, quantization=quantization, **s) for s in ({}, together(2)))
    assert tokens(two) == tokens(one)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_that_fails_alone_leaves_nothing_behind(tiny_qwen2, monkeypatch, stage, tp):
    """The next stage gets what it waits for, and all requests are computed again."""
    llm = make_llm(tiny_qwen2, max_num_batched_tokens=6, **together(2, tp))
    expected, ranks = tokens(llm), workers_of(llm)[stage * tp :][:tp]
    for call in (1, 4):
        for worker in ranks:
            fail_once(monkeypatch, worker.model_runner, call)
        engine, found, num_failed = llm.llm_engine, {}, 0
        for number, prompt in enumerate(PROMPTS):
            engine.add_request(str(number), prompt, GREEDY)
        while engine.has_unfinished_requests():
            try:
                found |= {output.request_id: output for output in engine.step()}
            except MemoryError:
                num_failed += 1
            engine.check_integrity()
        assert num_failed == 1
        assert [found[str(i)].outputs[0].token_ids for i in range(3)] == expected


def test_a_rank_that_fails_alone_in_its_stage_ends_the_engine(tiny_qwen2, monkeypatch):
    llm = make_llm(tiny_qwen2, **together(2, tp=2))
    fail_once(monkeypatch, workers_of(llm)[2].model_runner, 2)
    with pytest.raises(EngineDeadError, match="Worker_PP1_TP0 failed with MemoryError"):
        tokens(llm)


def fail_once(monkeypatch, runner, call):
    """The ``call``-th forward pass raises instead of computing anything."""
    original, calls = runner._forward, []

    def forward(*args):
        calls.append(args)
        if len(calls) == call:
            raise MemoryError
        return original(*args)

    monkeypatch.setattr(runner, "_forward", forward)


@pytest.mark.parametrize("tp", [1, 2])
def test_stages_in_processes_of_their_own(tiny_qwen2, tp):
    expected = tokens(make_llm(tiny_qwen2))
    llm = make_llm(tiny_qwen2, max_num_batched_tokens=12, **together(2, tp, "mp"))
    try:
        assert tokens(llm) == expected
        # a plan that only the last stage finds wrong
        plan, executor = full_step(4, 2, 40, 4), llm.llm_engine.engine_core.executor
        wrong = SimpleNamespace(prompt_logprobs=None)
        new = [replace(one, sampling_params=wrong) for one in plan.scheduled_new_reqs]
        plan = replace(plan, scheduled_new_reqs=new)
        with pytest.raises(AttributeError) as raised:
            executor.execute_model(plan)
        names = ["Worker_PP1_TP0", "Worker_PP1_TP1"][:tp]
        assert str(raised.value.__cause__).startswith(f"raised by {', '.join(names)}; by the first")
        executor.execute_model(SchedulerOutput(reset=True))
        # more than a pipe takes, in both directions at once
        calls = [executor.collective_rpc("no" * 10**6, non_block=True) for _ in range(3)]
        for call in calls:
            with pytest.raises(AttributeError, match="has no attribute 'nono"):
                call.result(60)
        assert tokens(llm) == expected
    finally:
        llm.shutdown()


def test_what_has_no_stages_is_refused(tiny_qwen2, tmp_path):
    with pytest.raises(ValueError, match="at most the number of layers, 2, got 3"):
        make_llm(tiny_qwen2, **together(3))
    draft = {"method": "draft_model", "model": str(tiny_qwen2), "num_speculative_tokens": 2}
    for settings in ({"enable_lora": True}, {"speculative_config": draft}):
        with pytest.raises(ValueError, match="must be 1 with a draft model or adapters"):
            make_llm(tiny_qwen2, **settings, **together(2))
    with pytest.raises(ValueError, match="must be 1 for a pooling model"):
        make_llm(tiny_qwen2, task="embed", **together(2))
