"""Equal to recomputing everything: engine against oracle, both against transformers."""

import random

import pytest
import torch
from helpers import make_llm, run_and_compare, workload

from minivllm import LLM, SamplingParams
from minivllm.lab import oracle
from minivllm.scheduling.policies import SchedulingPolicy


@pytest.fixture(scope="module", params=["tiny_qwen2", "tiny_llama"])
def checkpoint(request):
    return request.getfixturevalue(request.param)


@pytest.mark.slow
@pytest.mark.combinations(2)
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("budget", [1, 7, 33, 4096])
@pytest.mark.parametrize("pool", ["tight", "roomy"])
@pytest.mark.parametrize("caching", [True, False])
def test_engine_equals_oracle(tiny_qwen2, block_size, budget, pool, caching):
    rng = random.Random(f"oracle {block_size} {budget} {pool}")
    max_len = 40
    needed = -(-max_len // block_size) + 1
    llm = make_llm(
        tiny_qwen2, block_size=block_size, max_num_batched_tokens=budget, max_model_len=max_len,
        enable_prefix_caching=caching,
        num_gpu_blocks_override=needed if pool == "tight" else 40 * needed,
    )  # fmt: skip
    vocab = llm.llm_engine.model_config.vocab_size
    compared, exempted = run_and_compare(llm, *workload(rng, 7, vocab, max_len))
    print(f"compared {compared} tokens, exempted {exempted}")
    assert exempted <= 0.2 * (compared + exempted)


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_preemption_does_not_change_a_token(tiny_qwen2, block_size):
    llm = make_llm(
        tiny_qwen2, block_size=block_size, max_num_batched_tokens=24, max_model_len=48,
        num_gpu_blocks_override=1 + 64 // block_size,
    )  # fmt: skip
    prompts = [[i, i + 1, i + 2] for i in range(5)]
    params = [
        SamplingParams(temperature=t, seed=7, max_tokens=30, ignore_eos=True)
        for t in (0, 1, 0, 1, 2)
    ]
    run_and_compare(llm, prompts, params)
    assert llm.llm_engine.scheduler.num_preemptions > 0


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fcfs", "priority", "prefill_first", "static"])
def test_no_policy_changes_a_token(checkpoint, policy):
    llm = make_llm(
        checkpoint, block_size=4, max_num_batched_tokens=40, max_model_len=40, max_num_seqs=5,
        num_gpu_blocks_override=15, scheduling_policy=policy, long_prefill_token_threshold=9,
    )  # fmt: skip
    vocab = llm.llm_engine.model_config.vocab_size
    run_and_compare(llm, *workload(random.Random(policy), 10, vocab, 40))


@pytest.mark.parametrize("call", ["generate", "stream"])
def test_a_policy_that_admits_nobody_is_an_error(tiny_qwen2, call):
    class Closed(SchedulingPolicy):
        open = False

        def may_admit(self, running):
            return self.open

    policy = Closed()
    llm = make_llm(tiny_qwen2, scheduling_policy=policy)
    with pytest.raises(ValueError, match="Closed admits no request: 2 unfinished requests wait"):
        list(getattr(llm, call)([[1, 2, 3], [4]]))
    assert llm.llm_engine.get_num_unfinished_requests() == 0, "they are ended, and others can come"
    policy.open = True
    assert len(llm.generate([1, 2, 3], use_tqdm=False)) == 1


@pytest.mark.parametrize("num_requests", [1, 2, 16, 64])
def test_engine_equals_oracle_for_1_to_64_requests(tiny_qwen2, num_requests):
    rng = random.Random(num_requests)
    llm = make_llm(
        tiny_qwen2, block_size=4, max_num_batched_tokens=48, max_model_len=32, max_num_seqs=24,
        num_gpu_blocks_override=60,
    )  # fmt: skip
    compared, exempted = run_and_compare(llm, *workload(rng, num_requests, 97, 32))
    print(f"compared {compared} tokens, exempted {exempted}")
    assert exempted <= 0.2 * (compared + exempted)


def test_one_piece_prefill_equals_oracle(tiny_qwen2):
    llm = make_llm(
        tiny_qwen2, block_size=4, max_num_batched_tokens=40, max_model_len=40,
        enable_chunked_prefill=False, num_gpu_blocks_override=15,
    )  # fmt: skip
    run_and_compare(llm, *workload(random.Random(5), 10, 97, 40))


def test_a_wrong_engine_does_not_equal_the_oracle(tiny_qwen2, monkeypatch):
    """The comparison can fail: a mask that looks one token ahead is noticed."""
    from minivllm.worker import model_input

    original = model_input.slots_of
    monkeypatch.setattr(
        model_input, "slots_of", lambda ids, a, b, size: original(ids, a, b, size)[::-1]
    )
    llm = make_llm(tiny_qwen2, block_size=4, max_model_len=40)
    with pytest.raises(AssertionError):
        run_and_compare(llm, *workload(random.Random(5), 4, 97, 40))


def test_logits_equal_transformers(checkpoint):
    """The engine's paged, chunked logits against transformers' dense ones."""
    from transformers import AutoModelForCausalLM

    hf = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    llm = make_llm(checkpoint, block_size=4, max_model_len=64, max_num_batched_tokens=5)
    runner, seen = llm.llm_engine.model_runner, []
    compute = runner.model.compute_logits
    runner.model.compute_logits = lambda hidden: seen.append(compute(hidden)) or seen[-1]
    rng = random.Random(0)
    prompt = [rng.randrange(hf.config.vocab_size) for _ in range(23)]
    output = llm.generate(
        [prompt], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), use_tqdm=False
    )[0]
    tokens = output.outputs[0].token_ids
    with torch.no_grad():
        want = hf(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    torch.testing.assert_close(torch.cat(seen), want, atol=1e-4, rtol=0)
    assert tokens == want.argmax(-1).tolist()
    for i in (len(prompt), len(prompt) + 11):
        logits = oracle.next_token_logits(runner.model, (prompt + tokens)[:i])
        torch.testing.assert_close(logits, want[i - len(prompt)], atol=1e-4, rtol=0)


def test_kv_bytes_per_token(tiny_qwen2):
    llm = make_llm(tiny_qwen2, block_size=4, num_gpu_blocks_override=65)
    config = llm.llm_engine.model_config
    assert config.kv_bytes_per_token() == 2 * 2 * 2 * 8 * 4  # k and v, layers, heads, size, fp32
    storage = llm.llm_engine.model_runner.kv_cache
    assert storage.data.nbytes == 65 * 4 * config.kv_bytes_per_token()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "half", "float"])
def test_other_dtypes_run(tiny_qwen2, dtype):
    llm = make_llm(tiny_qwen2, dtype=dtype, max_model_len=64)
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    assert len(llm.generate([1, 2, 3], params, use_tqdm=False)[0].outputs[0].token_ids) == 5


@pytest.fixture(scope="module")
def embedded():
    return LLM(block_size=16, max_model_len=1024, max_num_batched_tokens=50)


def test_the_embedded_model_equals_transformers(embedded):
    """Logits within 1e-4 in float32, and the same greedy tokens, as text and as a chat."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import minivllm

    path = minivllm.embedded_model_path()
    hf = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path)
    table = "| Name | Age |\n|---|---|\n| Ada Hart | 36 |\n| Ben Ortiz | 29 |"
    chat = [
        {"role": "system", "content": table},
        {"role": "user", "content": "How old is Ada Hart?"},
    ]
    prompts = [
        tokenizer.encode("The capital of France is"),
        tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"],
    ]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    outputs = embedded.generate(prompts, params, use_tqdm=False)
    assert embedded.chat(chat, params, use_tqdm=False)[0].prompt_token_ids == prompts[1]
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = output.outputs[0].token_ids
        with torch.no_grad():
            want = hf(torch.tensor([prompt + tokens])).logits[0]
            ours = oracle.next_token_logits(embedded.llm_engine.model_runner.model, prompt)
            greedy = hf.generate(
                torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=-1
            )
        torch.testing.assert_close(ours, want[len(prompt) - 1], atol=1e-4, rtol=0)
        assert tokens == greedy[0, len(prompt) :].tolist()


def test_the_embedded_model_in_the_engine_equals_the_oracle(embedded):
    """Chunked, batched and cached; next to nothing is too close to call."""
    prompts = ["Hello, my name is", "The future of AI is", "The capital of Japan is"]
    params = [
        SamplingParams(temperature=t, top_p=0.95, seed=i, max_tokens=12)
        for i, t in enumerate((0, 0.8, 1.0))
    ]
    compared, exempted = run_and_compare(embedded, prompts, params)
    print(f"compared {compared} tokens, exempted {exempted}")
    assert compared >= 24
    assert exempted <= 3
