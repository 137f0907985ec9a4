"""Every kind of request, begun by one engine and continued by another: the tokens are one engine's.

Adapters, pictures, several samples, and requests that are preempted in between.
"""

import shutil

import multimodal_models as small
import pytest
from adapters import load, tensors_for, write_adapter
from helpers import make_llm, workers_of
from two_engines import LIMITS, asking, engine, greedy, prompt_tokens_computed

from minivllm import SamplingParams
from minivllm.engine.input_processor import EngineInput
from minivllm.lora.request import LoRARequest
from minivllm.trace.records import Preempted

LORA = {"enforce_eager": True, "enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
SEND = {"do_remote_decode": True}


def add(llm, request_id, prompt, params, lora_request=None):
    """Add a request; ``prompt`` is its token ids and its items, which have been processed."""
    token_ids, features = prompt
    given = EngineInput(list(token_ids), mm_features=list(features))
    made = llm.llm_engine.input_processor.make_request(
        request_id, given, params, lora_request=lora_request
    )
    llm.llm_engine.submit(made)


def run(llm, prompts, params, adapters):
    """Run requests to their end, step by step. Returns their outputs."""
    engine = llm.llm_engine
    adapters = adapters or [None] * len(prompts)
    for index, (prompt, one, adapter) in enumerate(zip(prompts, params, adapters, strict=True)):
        add(llm, str(index), prompt, one, adapter)
    outputs = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
        engine.engine_core.check_integrity()
    return [outputs[str(index)] for index in range(len(prompts))]


def tokens_of(outputs):
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


def begin_and_continue(sides, alone, prompts, params, adapters=(None, None)):
    """Run prompts by two engines and by one; returns what the second engine was asked.

    Args:
        sides: the engine that sends and the one that gets.
        alone: a third one, without a connector.
        adapters: of the sender's requests, and of the others'.
    """
    sender, receiver = sides
    firsts = [asking(greedy(1), SEND) for _ in prompts]
    asked = [output.kv_transfer_params for output in run(sender, prompts, firsts, adapters[0])]
    assert all(one["do_remote_prefill"] for one in asked)
    follow = [asking(p, a) for p, a in zip(params, asked, strict=True)]
    got = run(receiver, prompts, follow, adapters[1])
    want = run(alone, prompts, params, adapters[1])
    assert tokens_of(got) == tokens_of(want)
    computed = prompt_tokens_computed(receiver)
    assert set(computed.values()) <= {1}
    for llm in sides:
        assert llm.llm_engine.scheduler.kv_manager.usage == 0
    return asked


@pytest.fixture(scope="module")
def adapters(tiny_qwen2, tmp_path_factory):
    """Two adapters, each in two places, as on two machines."""
    root = tmp_path_factory.mktemp("adapters")
    model = load(tiny_qwen2)
    found = []
    for number in (1, 2):
        here = write_adapter(root / f"p{number}", tensors_for(model, seed=number))
        there = shutil.copytree(here, root / f"d{number}")
        sent = LoRARequest(f"p{number}", number, str(here))
        found.append((sent, LoRARequest(f"d{number}", 3 - number, str(there))))
    return found


def test_adapters_go_by_their_content_whatever_they_are_called(tiny_qwen2, tmp_path, adapters):
    sender = engine(tiny_qwen2, tmp_path, "kv_producer", **LORA)
    receiver = engine(tiny_qwen2, tmp_path, "kv_consumer", trace=True, **LORA)
    alone = make_llm(tiny_qwen2, **LIMITS, **LORA)
    prompts = [([5, 6] * 7, [])] * 3 + [([8] * 9, [])]
    here, there = zip(*adapters, strict=True)
    both = ([None, *here, here[0]], [None, *there, there[0]])
    asked = begin_and_continue((sender, receiver), alone, prompts, [greedy()] * 4, both)
    assert len({one["remote_name"] for one in asked}) == 4
    assert prompt_tokens_computed(receiver) == {str(i): 1 for i in range(4)}
    with pytest.raises(ValueError, match="another prompt, adapter"):
        add(receiver, "wrong", prompts[1], asking(greedy(), asked[1]), there[1])
    receiver.llm_engine.engine_core.check_integrity()


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    return small.save(small.make_llava("siglip", "qwen2"), tmp_path_factory.mktemp("llava"))


@pytest.mark.parametrize(
    ("sides", "all_fetched"),
    [
        ({}, True),
        ({"max_num_batched_tokens": 40}, True),
        ({"num_gpu_blocks_override": 26}, False),
    ],
    ids=["plain", "chunked", "tight"],
)
def test_pictures_come_with_their_prompts(llava, tmp_path, sides, all_fetched):
    limits = {"max_model_len": 80, "num_gpu_blocks_override": 120} | sides
    sender = engine(llava, tmp_path, "kv_producer", **limits)
    receiver = engine(llava, tmp_path, "kv_consumer", trace=True, **limits)
    alone = make_llm(llava, **LIMITS | limits)
    prompts = [
        small.with_pictures(parts)
        for parts in ([3, "sun", 4, 5], [3, "moon", 4, 5], ["sun", "cat", 7], [6, "dog"], [9] * 11)
    ]
    begin_and_continue((sender, receiver), alone, prompts, [greedy(8)] * 5)
    if all_fetched:
        assert prompt_tokens_computed(receiver) == {str(i): 1 for i in range(5)}


def test_samples_begin_behind_a_prompt_that_was_fetched(tiny_qwen2, tmp_path):
    sender = engine(tiny_qwen2, tmp_path, "kv_producer")
    receiver = engine(tiny_qwen2, tmp_path, "kv_consumer", trace=True)
    alone = make_llm(tiny_qwen2, **LIMITS)
    prompts = [([5] * 13, []), ([6, 7] * 8, [])]
    params = [SamplingParams(n=3, seed=seed, max_tokens=7, ignore_eos=True) for seed in (1, 2)]
    begin_and_continue((sender, receiver), alone, prompts, params)
    assert prompt_tokens_computed(receiver) == {"0": 1, "1": 1}


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("caching", [True, False])
def test_one_that_is_preempted_in_between_is_computed(tiny_qwen2, tmp_path, mode, caching):
    """On either side: the sender's prompts come in chunks beside others that decode."""
    tight = {
        "num_gpu_blocks_override": 15, "max_model_len": 48, "max_num_batched_tokens": 9,
        "preemption_mode": mode, "enable_prefix_caching": caching,
    }  # fmt: skip
    sender = engine(tiny_qwen2, tmp_path, "kv_producer", trace=True, **tight)
    receiver = engine(tiny_qwen2, tmp_path, "kv_consumer", trace=True, **tight)
    alone = make_llm(tiny_qwen2, **LIMITS)
    prompts = [([first] * 13, []) for first in range(1, 5)]
    params = [greedy(16)] * 3 + [SamplingParams(n=2, seed=3, max_tokens=14, ignore_eos=True)]
    busy = [([first] * 6, []) for first in range(7, 10)]
    for index, prompt in enumerate(busy):  # they decode while prompts are computed
        add(sender, f"busy {index}", prompt, greedy(25))
    begin_and_continue((sender, receiver), alone, prompts, params)
    for llm in (sender, receiver):
        assert llm.llm_engine.scheduler.num_preemptions > 0
    if mode == "recompute":
        assert next(receiver.llm_engine.trace.of(Preempted), None) is not None


def test_what_has_arrived_is_what_was_sent_whatever_the_request(llava, tmp_path):
    """Bit for bit, but for the last token, which both have computed."""
    sender = engine(llava, tmp_path, "kv_both", max_model_len=80)
    receiver = engine(llava, tmp_path, "kv_both", max_model_len=80)
    prompt = small.with_pictures([3, "sun", 4, "moon", 5])
    (sent,) = run(sender, [prompt], [asking(greedy(1), SEND)], None)
    run(receiver, [prompt], [asking(greedy(1), sent.kv_transfer_params)], None)
    num = len(prompt[0]) - 1
    caches = [workers_of(llm)[0].model_runner.kv_cache for llm in (sender, receiver)]
    for mine, theirs in zip(*(cache.layers for cache in caches), strict=True):
        for one, other in zip(mine, theirs, strict=True):
            parts = [tensor[1:12].flatten(0, 1)[:num] for tensor in (one, other)]
            assert parts[0].equal(parts[1])
            assert parts[0].abs().sum() > 0
