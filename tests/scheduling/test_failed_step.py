"""A step that fails can be repeated: ``LLMEngine.step`` raises, and the next call goes on."""

import pytest
from helpers import Disturbed, fail_once, make_llm, workers_of

from minivllm import SamplingParams
from minivllm.sampling_params import BeamSearchParams

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]  # with a budget of 4, prefilled in three steps
PARAMS = {
    "greedy": SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1),
    "n=3": SamplingParams(n=3, seed=7, max_tokens=8, ignore_eos=True, prompt_logprobs=1),
    "beams": BeamSearchParams(beam_width=3, max_tokens=8, ignore_eos=True),
}


def run(llm, params):
    """All tokens of a request, all their logprobs, and how many of its steps failed."""
    engine, num_failed, outputs = llm.llm_engine, 0, []
    engine.add_request("a", {"prompt_token_ids": PROMPT}, params)
    while engine.has_unfinished_requests():
        try:
            outputs = engine.step() or outputs
        except Disturbed:
            num_failed += 1
        engine.check_integrity()
    (output,) = outputs
    found = [logprobs for c in output.outputs for logprobs in c.logprobs or ()]
    found += [logprobs for logprobs in output.prompt_logprobs or () if logprobs]
    logprobs = [entry.logprob for by_token in found for entry in by_token.values()]
    logprobs += [c.cumulative_logprob or 0.0 for c in output.outputs]
    return [c.token_ids for c in output.outputs], logprobs, num_failed


@pytest.fixture(scope="module", params=[(1, 1), (2, 1), (1, 2)], ids=["one rank", "tp 2", "pp 2"])
def llm(request, tiny_qwen2):
    tp, pp = request.param
    return make_llm(
        tiny_qwen2, block_size=4, max_model_len=40, max_num_batched_tokens=4,
        tensor_parallel_size=tp, pipeline_parallel_size=pp,
        distributed_executor_backend="together" if tp * pp > 1 else "uni",
    )  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(llm):
    return {name: run(llm, params)[:2] for name, params in PARAMS.items()}


@pytest.mark.combinations(2)
@pytest.mark.parametrize("call", range(1, 9))
@pytest.mark.parametrize("what", ["_forward", "model.compute_logits", "sampler"])
@pytest.mark.parametrize("params", PARAMS)
def test_a_failed_step_changes_no_token(llm, undisturbed, monkeypatch, params, what, call):
    """Chunks of a prefill, siblings that fork, beams: each fails in one of its 8 steps.

    All ranks fail in the same place, as they do if a user's function raises; of two stages only
    the last one samples.
    """
    assert llm.reset_prefix_cache()
    for worker in workers_of(llm):
        *path, name = what.split(".")
        owner = getattr(worker.model_runner, path[0]) if path else worker.model_runner
        fail_once(monkeypatch, owner, name, call)
    tokens, logprobs, num_failed = run(llm, PARAMS[params])
    assert (tokens, num_failed) == (undisturbed[params][0], 1)
    assert logprobs == pytest.approx(undisturbed[params][1], abs=1e-4)
