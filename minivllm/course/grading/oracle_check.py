"""Oracle check: a small engine with the class under test, every token recomputed. Needs torch.

A random model, a tight pool, samples, shared prefixes.
Random weights are unforgiving: one K or V read from a wrong slot, and the next token is another.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file

from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.llm_engine import LLMEngine
from minivllm.kv.manager import KVCacheManager
from minivllm.lab import oracle
from minivllm.lab.sim.shapes import MINIATURE
from minivllm.logger import silenced
from minivllm.models.loader import load_config, load_model
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams

MAX_MODEL_LEN = 40
CLEAR = 1e-4  # a choice as close as this may fall either way
MAX_STEPS = 500


def first_wrong_token(kv_cache_manager_cls: type[KVCacheManager], seed: int = 0) -> str | None:
    """Serve a dozen requests with this manager, and recompute everything.

    Returns:
        The first token that is not the oracle's, in words; None if there is none.
    """
    quiet = silenced("minivllm.worker.worker", "minivllm.cpu.apply")
    with TemporaryDirectory() as directory, quiet:
        _write_random_model(Path(directory))
        engine = LLMEngine(
            EngineArgs(
                directory, skip_tokenizer_init=True, device="cpu",
                attention_backend="paged_torch", block_size=4,
                max_model_len=MAX_MODEL_LEN, max_num_batched_tokens=16, max_num_seqs=8,
                num_gpu_blocks_override=31, swap_space=0.01,
                kv_cache_manager_cls=kv_cache_manager_cls,
            )
        )  # fmt: skip
    requests = {request.request_id: request for request in _requests(engine, seed)}
    for request in requests.values():
        engine.submit(request)
    steps = 0
    with silenced("minivllm.scheduling.preemption"):
        while engine.has_unfinished_requests() and steps < MAX_STEPS:
            engine.step()
            steps += 1
    if engine.has_unfinished_requests():
        return f"after {steps} steps some are not done: {', '.join(engine.scheduler.requests)}"
    for request in requests.values():
        for seq in request.seqs:
            wrong = _first_difference(engine, request, seq.index, seq.output_token_ids)
            if wrong:
                return f"{seq.seq_id} (prompt of {len(request.prompt_token_ids)} tokens): {wrong}"
    return None


def _write_random_model(directory: Path) -> None:
    """Weights so large that every token matters; the norms are ones."""
    (directory / "config.json").write_text(json.dumps(MINIATURE), encoding="utf-8")
    config = load_config(directory)
    model = load_model(directory, config, torch.float32, torch.device("cpu"), "dummy")
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.ones_like(tensor)
        if "norm" in name
        else torch.empty_like(tensor).normal_(0.0, 0.4, generator=generator)
        for name, tensor in model.checkpoint_tensors().items()
    }
    save_file(weights, directory / "model.safetensors")


def _requests(engine: LLMEngine, seed: int) -> list[Request]:
    rng = Random(seed)
    table = [rng.randrange(90) for _ in range(9)]
    requests = []
    for i in range(12):
        prompt = table * (i % 2) + [rng.randrange(90) for _ in range(rng.randint(1, 9))]
        if i == 9:
            prompt = table[:8]  # nothing but full blocks, and all of them known
        sampled = {"temperature": 1.0, "n": rng.randint(1, 3)} if i % 3 else {"temperature": 0}
        params = SamplingParams(max_tokens=rng.randint(4, 12), ignore_eos=True, **sampled)
        requests.append(engine.input_processor.make_request(f"request {i}", prompt, params))
    return requests


def _first_difference(
    engine: LLMEngine, request: Request, index: int, got: list[int]
) -> str | None:
    want = oracle.run(engine.model_runner.model, request, MAX_MODEL_LEN, index)
    for i, (token, margin) in enumerate(zip(want.token_ids, want.margins, strict=True)):
        if margin < CLEAR:
            return None  # from here on both may be right
        if got[i] != token:
            return f"output token {i} is {got[i]}, and {token} if everything is recomputed"
    return None
