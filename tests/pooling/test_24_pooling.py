"""Pooling in the engine: budgets, caching, preemption, order, adapters, quantized weights."""

import json
import math
import random
from functools import cache
from itertools import product

import pytest
import quantized_checkpoints as qc
import torch
import transformers
from adapters import peft_adapter
from faults import PLANNING, Fault, fault_at
from helpers import make_llm, workers_of
from pooling_models import (
    FAMILIES,
    FILE,
    assert_near,
    hidden_states,
    logits,
    make_model,
    make_prompts,
    normalized,
    reward_model,
    save,
)
from safetensors.torch import load_file, save_file

from minivllm import PoolingParams
from minivllm.lora.request import LoRARequest

PROMPTS = make_prompts()


ALL = list(product((7, 16, 0), (True, False), ("recompute", "swap")))  # budget, caching, mode
TASKS = {"embed": "Qwen2", "classify": "Llama", "reward": "Qwen2"}
# all of them for these three, and for each other family some
CASES = [(*one, *limits) for one in TASKS.items() for limits in ALL]
OTHERS = [one for one in product(("embed", "classify"), FAMILIES) if one not in TASKS.items()]
CASES += [(*one, *limits) for i, one in enumerate(OTHERS) for limits in ALL[i % 4 :: 4]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A function of a task and a family: directory, the task, what transformers has of PROMPTS."""

    @cache
    def make(task, family):
        directory = tmp_path_factory.mktemp(task)
        if task == "reward":
            scores = reward_model(directory, f"{family}ForRewardModel", 1)
            return directory, "token_classify", [scores(prompt) for prompt in PROMPTS]
        if task == "embed":
            model = make_model(family)
            wanted = [normalized(hidden_states(model, prompt)[-1]) for prompt in PROMPTS]
        else:
            model = make_model(family, "ForSequenceClassification", num_labels=3)
            wanted = [logits(model, prompt).softmax(-1) for prompt in PROMPTS]
        return save(model, directory), task, wanted

    return make


def small_engine(directory, budget, **kwargs):
    """An engine with few blocks, whose prompts take turns, so that they take blocks away."""
    return make_llm(
        directory, block_size=8, max_model_len=200, num_gpu_blocks_override=32, max_num_seqs=8,
        max_num_batched_tokens=budget, long_prefill_token_threshold=budget // 3,
        scheduling_policy="priority", **kwargs,
    )  # fmt: skip


@pytest.mark.bits
@pytest.mark.parametrize(("task", "family", "budget", "caching", "mode"), CASES)
def test_the_numbers_are_transformers_however_they_are_scheduled(
    checkpoint, task, family, budget, caching, mode
):
    directory, task, wanted = checkpoint(task, family)
    limits = {"enable_prefix_caching": caching, "preemption_mode": mode}
    if budget:
        llm = small_engine(directory, budget, **limits)
    else:
        llm = make_llm(directory, max_num_batched_tokens=20_000, block_size=8, **limits)
    order = list(range(len(PROMPTS)))
    for turn in range(2):  # the second finds the cache filled
        random.Random(budget + turn).shuffle(order)
        priority = [i % 3 for i in order] if budget else None
        outputs = llm.encode([PROMPTS[i] for i in order], use_tqdm=False, priority=priority)
        assert_near([output.outputs.data for output in outputs], [wanted[i] for i in order])
        hits = sum(output.num_cached_tokens for output in outputs)
        assert (hits > 0) == (caching and task != "token_classify")
    scheduler = llm.llm_engine.scheduler
    assert (scheduler.num_preemptions > 0) == (budget > 0)
    scheduler.check_integrity()
    assert scheduler.kv_manager.block_pool.num_free_blocks == (
        scheduler.kv_manager.block_pool.num_usable_blocks
    )


@pytest.mark.bits
def test_each_prompt_has_its_own_adapter_or_none(tmp_path):
    """Also under a small budget, with caching; each hit is one of the same adapter."""
    loras = [None]
    wanted = [[hidden_states(make_model("Qwen2"), prompt)[-1] for prompt in PROMPTS]]
    for number in (1, 2):
        model = make_model("Qwen2", "ForCausalLM")
        model = peft_adapter(
            model, tmp_path / f"lora{number}", seed=number, r=4, lora_alpha=8,
            target_modules=["q_proj", "v_proj", "down_proj"],
        )  # fmt: skip
        wanted.append([hidden_states(model.base_model.model, prompt)[-1] for prompt in PROMPTS])
        loras.append(LoRARequest(str(number), number, str(tmp_path / f"lora{number}")))
    directory = save(make_model("Qwen2", "ForCausalLM"), tmp_path / "base")
    llm = small_engine(directory, 16, task="embed", enable_lora=True, max_loras=2)
    raw = PoolingParams(use_activation=False)
    for turn in range(2):
        which = [(i + turn) % 3 for i in range(len(PROMPTS))]
        outputs = llm.encode(
            PROMPTS, raw, use_tqdm=False, lora_request=[loras[adapter] for adapter in which]
        )
        found = [output.outputs.data for output in outputs]
        assert_near(found, [wanted[adapter][i] for i, adapter in enumerate(which)])
    assert any(output.num_cached_tokens for output in outputs)


def classifier_adapter(base, directory, seed, **config):
    """An adapter that PEFT makes for a classifier, whose last layer it may train, too."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(base)
    config |= {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "o_proj"]}
    model = peft_adapter(model, directory, seed=seed, **config)
    for name, parameter in model.named_parameters():
        if ".modules_to_save." in name:
            parameter.data.normal_(0, 1, generator=torch.Generator().manual_seed(seed))
    model.save_pretrained(directory)
    return model.requires_grad_(False)


TRAINED = ({"task_type": "SEQ_CLS"}, {"modules_to_save": ["score"]}, {})


@pytest.mark.parametrize("family", ["Qwen2", "Llama"])
def test_an_adapter_brings_its_own_classifier(tmp_path, family):
    """Beside others and the base model in one step; ranks have it, too."""
    base = save(make_model(family, "ForSequenceClassification", num_labels=3), tmp_path / "base")
    models = [transformers.AutoModelForSequenceClassification.from_pretrained(base)]
    loras = [None]
    for number, config in enumerate(TRAINED, 1):
        models.append(classifier_adapter(base, tmp_path / str(number), number, **config))
        loras.append(LoRARequest(str(number), number, str(tmp_path / str(number))))
    numbers = [i % 4 for i in range(len(PROMPTS))]
    pairs = zip(numbers, PROMPTS, strict=True)
    wanted = [models[number](torch.tensor([prompt])).logits[0].detach() for number, prompt in pairs]
    raw = PoolingParams(use_activation=False)
    for more in ({}, {"tensor_parallel_size": 2, "distributed_executor_backend": "together"}):
        llm = small_engine(base, 16, enable_lora=True, max_loras=3, enforce_eager=True, **more)
        adapters = [loras[number] for number in numbers]
        outputs = llm.encode(PROMPTS, raw, use_tqdm=False, lora_request=adapters)
        assert_near([output.outputs.data for output in outputs], wanted)
    few = small_engine(base, 16, enable_lora=True, max_loras=1, enforce_eager=True)
    for number in (1, 3, 2, 0):  # in the same slot
        prompt = PROMPTS[number : number + 1]
        outputs = few.encode(prompt, raw, use_tqdm=False, lora_request=loras[number])
        assert_near([outputs[0].outputs.data], wanted[number : number + 1])


def test_a_classifier_that_does_not_fit_is_refused(tmp_path):
    """A model that makes embeddings leaves it out, as it does the checkpoint's."""
    five = make_model("Qwen2", "ForSequenceClassification", num_labels=5)
    classifier_adapter(save(five, tmp_path / "five"), tmp_path / "lora", 1, task_type="SEQ_CLS")
    three = save(make_model("Qwen2", "ForSequenceClassification", num_labels=3), tmp_path / "three")
    lora = LoRARequest("five", 1, str(tmp_path / "lora"))
    raw = PoolingParams(use_activation=False)
    small = {"enable_lora": True, "enforce_eager": True}
    with pytest.raises(ValueError, match=r"classifier has .*5, 32.* the model's has .*3"):
        small_engine(three, 16, **small).encode(PROMPTS[0], raw, lora_request=lora)
    small_engine(three, 16, task="embed", **small).encode(PROMPTS[:1], raw, lora_request=lora)
    generates = save(make_model("Qwen2", "ForCausalLM"), tmp_path / "causal")
    with pytest.raises(ValueError, match=r"a classifier's tensors, .* but the model has none"):
        make_llm(generates, **small).generate([[1, 2]], lora_request=lora)


def add_classifier(directory):
    """Make a classifier of a checkpoint that generates."""
    file = directory / "config.json"
    changes = {"architectures": ["LlamaForSequenceClassification"], "num_labels": 3}
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    tensors = load_file(directory / FILE)
    del tensors["lm_head.weight"]
    generator = torch.Generator().manual_seed(5)
    tensors["score.weight"] = torch.randn(3, 64, generator=generator)
    save_file(tensors, directory / FILE)


@pytest.mark.bits
@pytest.mark.parametrize("task", ["embed", "classify"])
def test_quantized_weights_give_the_numbers_of_what_they_stand_for(tmp_path, task):
    """The classifier stays in float32, whatever the layers are."""
    config, packer = {"quant_method": "gptq", "bits": 4, "group_size": 32}, qc.gptq
    plain = qc.write_float("Llama", tmp_path / "plain")
    if task == "classify":
        add_classifier(plain)
    qc.write_quantized(plain, tmp_path / "m", config, packer, {})
    prompts = [[token % 50 for token in prompt[:64]] for prompt in PROMPTS]
    found = []
    for directory in (tmp_path / "m", tmp_path / "m/twin"):
        llm = make_llm(directory, task=task, max_num_batched_tokens=60)
        outputs = llm.encode(prompts, PoolingParams(use_activation=False), use_tqdm=False)
        found.append([output.outputs.data for output in outputs])
    assert max(float(vector.abs().max()) for vector in found[1]) > 1
    assert_near(*found)


POINTS = [  # where a step of pooling can fail: it has no tokens to sample, and no forks
    *PLANNING,
    "model_runner.input_batch.update",
    "model_runner._forward",
    "model_runner.input_batch.pooling_metadata",
    "model_runner.make_output",
    "scheduler.update_from_output",
    "scheduler.finish",
    "scheduler.kv_manager.free",
]


@pytest.mark.bits
@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("task", TASKS)
def test_after_a_step_that_fails_the_states_of_chunks_are_made_again(checkpoint, task, mode):
    """No chunk's rows are kept twice, and none is missing, wherever the step has failed."""
    directory, _, wanted = checkpoint(task, TASKS[task])
    llm = small_engine(directory, 16, preemption_mode=mode)
    engine, rng = llm.llm_engine, random.Random(7)
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), {"prompt_token_ids": prompt}, PoolingParams(), priority=0)
    found, num_failed = {}, 0
    while engine.has_unfinished_requests():
        if rng.random() < 0.05:
            path, after = rng.choice(POINTS), rng.random() < 0.5
            at_last = fault_at(engine, "scheduler.update_from_output", after=True)
            with at_last, fault_at(engine, path, rng.randrange(2), after), pytest.raises(Fault):
                engine.engine_core.step()
            num_failed += 1
            engine.check_integrity()
        for output in engine.step():
            found[int(output.request_id)] = output.outputs.data
    assert num_failed > 20
    assert_near([found[index] for index in range(len(PROMPTS))], wanted)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(("task", "family"), TASKS.items())
def test_a_number_that_is_none_is_an_error(checkpoint, task, family, bad):
    """Errors of each task, as on the server; other prompts and later calls have their numbers."""
    directory, task, wanted = checkpoint(task, family)
    llm = make_llm(directory)
    (worker,) = workers_of(llm)
    embedding = worker.model_runner.model.model.embed_tokens.weight
    unused = next(i for i in range(len(embedding)) if all(i not in p for p in PROMPTS[:3]))
    embedding.data[unused] = bad
    tasks = [task, f"token_{task}"] if not task.startswith("token_") else [task]
    raw = PoolingParams(use_activation=False)
    says = "prompt 1 of 2: the model's output for this input holds a NaN or an infinity"
    for asked in tasks:
        with pytest.raises(ValueError, match=says):
            llm.encode([PROMPTS[0], [unused]], raw, use_tqdm=False, pooling_task=asked)
    if task in ("embed", "classify"):
        with pytest.raises(ValueError, match="holds a NaN or an infinity"):
            getattr(llm, task)([[unused]], use_tqdm=False)
    outputs = llm.encode(PROMPTS[:3], use_tqdm=False, pooling_task=task)
    assert_near([output.outputs.data for output in outputs], wanted[:3])


@pytest.mark.parametrize("task", ["embed", "classify"])
def test_heads_compute_in_float32_whatever_the_model_does(tmp_path, task):
    model = make_model("Llama", "Model" if task == "embed" else "ForSequenceClassification")
    llm = make_llm(save(model, tmp_path), dtype="bfloat16")
    (output,) = llm.encode(PROMPTS[0], use_tqdm=False)
    assert output.outputs.data.dtype == torch.float32
    norm = output.outputs.data.norm() if task == "embed" else output.outputs.data.sum()
    assert abs(float(norm) - 1) < 1e-6
    pooler = llm.llm_engine.model_runner.model.pooler
    assert {parameter.dtype for parameter in pooler.parameters()} <= {torch.float32}
    if task == "classify":
        assert torch.equal(pooler.score.weight, model.score.weight)


@pytest.mark.parametrize("task", TASKS)
def test_memory_is_profiled_with_the_pooler(checkpoint, task):
    directory, *_ = checkpoint(task, TASKS[task])
    profile = make_llm(directory, max_num_batched_tokens=100).profile_memory()
    assert profile.activations > 100 * 32 * 4
