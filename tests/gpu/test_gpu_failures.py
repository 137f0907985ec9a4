"""Failures on a GPU: one sentence, at the step that made it, and the next one works."""

import pytest
import torch
from cuda_stand_ins import out_of_memory

from minivllm import SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

PROMPT = "The capital of France is"
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


def say(llm):
    return llm.generate([PROMPT], GREEDY, use_tqdm=False)[0].outputs[0].token_ids


def is_one_sentence(error):
    return "\n" not in str(error.value) and ". " not in str(error.value)


def test_a_failed_step_and_the_next(on_device, monkeypatch):
    llm = on_device()
    want = say(llm)

    def fail(*_):
        raise ZeroDivisionError("made up")

    with monkeypatch.context() as patch:
        patch.setattr(llm.llm_engine.model_runner.model, "compute_logits", fail)
        with pytest.raises(ZeroDivisionError, match="made up"):
            say(llm)
    assert say(llm) == want


def test_a_step_that_does_not_fit_and_the_next(on_device, monkeypatch):
    llm = on_device()
    want = say(llm)
    with monkeypatch.context() as patch:
        patch.setattr(llm.llm_engine.model_runner.model, "compute_logits", out_of_memory)
        patch.setattr(torch.cuda, "empty_cache", lambda: None)
        with pytest.raises(RuntimeError, match="does not fit into the memory of") as error:
            say(llm)
    assert is_one_sentence(error)
    assert say(llm) == want


def test_a_full_card_in_a_step(card_only, on_device):
    """No stand-in: others take nearly all of it, and a large step comes."""
    llm = on_device(max_model_len=8192, max_num_batched_tokens=8192, num_gpu_blocks_override=1200)
    want = say(llm)
    torch.cuda.empty_cache()
    ballast = torch.empty(torch.cuda.mem_get_info()[0] - 2**26, dtype=torch.uint8, device="cuda")
    with pytest.raises(RuntimeError, match="does not fit into the memory of") as error:
        llm.generate([{"prompt_token_ids": [7] * 8000}] * 2, GREEDY, use_tqdm=False)
    assert is_one_sentence(error)
    del ballast
    assert say(llm) == want


def test_a_full_card_at_the_start_and_the_next_engine(card_only, on_device):
    free, total = torch.cuda.mem_get_info()
    ballast = torch.empty(free - 2**28, dtype=torch.uint8, device="cuda")
    with pytest.raises(ValueError, match=r"Free memory on device cuda.* Decrease GPU memory"):
        on_device(num_gpu_blocks_override=None)
    with pytest.raises(ValueError, match="do not fit into the GPU's") as error:
        on_device(num_gpu_blocks_override=None, kv_cache_memory_bytes=total)
    assert is_one_sentence(error)
    del ballast
    torch.cuda.empty_cache()
    assert len(say(on_device())) == 4


def test_a_kernel_that_cannot_be_launched_is_told_at_its_step(on_device, on_card, monkeypatch):
    """More shared memory than any card has: the error is raised where it was made."""
    pytest.importorskip("triton")
    from triton.runtime.errors import OutOfResources

    from minivllm.attention.kernels import varlen

    llm = on_device(max_num_batched_tokens=8)
    want = say(llm)
    launch = varlen.launch_varlen

    def too_large(query, key_cache, max_query_len):
        if not on_card:  # the interpreter has no limits
            raise OutOfResources(300_000, 232_448, "shared memory")
        shape = launch(query, key_cache, max_query_len)
        return shape | {"BLOCK_M": 128, "BLOCK_N": 512, "num_stages": 8, "HEAD_DIM_PADDED": 256}

    with monkeypatch.context() as patch:
        patch.setattr(varlen, "launch_varlen", too_large)
        with pytest.raises(OutOfResources, match=r"(shared|tensor) memory"):
            say(llm)
    assert say(llm) == want
