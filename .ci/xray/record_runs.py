"""Record runs of a real vLLM on the embedded model: those that come with the package and its tests.

``python .ci/xray/record_runs.py DIR [NAME ...]`` with vLLM's Python writes NAME.jsonl.gz, each by a
vLLM of its own, and compares each step with vLLM's own blocks.
"""

from __future__ import annotations

import gzip
import os
import random
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from minivllm.embedded import embedded_adapter_path, embedded_model_path

TOPICS = "rivers music bread winter trains the sea a garden old maps good tea long walks".split()
CHAT = "<|user|>\nWrite a short essay about {}.\n<|assistant|>\n"
FULL_STOP = 16  # its token id
RULES = "Answer in plain words, name no sources, and keep to the question that is asked. " * 4

# name -> arguments of vLLM's LLM
SETTINGS: dict[str, dict[str, Any]] = {
    "tight": {
        "num_gpu_blocks_override": 12, "max_num_seqs": 6, "max_num_batched_tokens": 64,
        "max_model_len": 256,
    },
    "chunks": {"num_gpu_blocks_override": 64, "max_num_seqs": 8, "max_num_batched_tokens": 48},
    "prefixes": {"num_gpu_blocks_override": 32, "max_num_seqs": 6, "max_num_batched_tokens": 96},
    "drafts": {
        "num_gpu_blocks_override": 32, "max_num_seqs": 4, "max_num_batched_tokens": 64,
        "speculative_config": {
            "method": "ngram", "num_speculative_tokens": 3,
            "prompt_lookup_max": 4, "prompt_lookup_min": 2,
        },
    },
    "priorities": {
        "num_gpu_blocks_override": 26, "max_num_seqs": 3, "max_num_batched_tokens": 64,
        "scheduling_policy": "priority",
    },
    "waits": {"num_gpu_blocks_override": 28, "max_num_seqs": 5, "max_num_batched_tokens": 64},
    "overtakes": {
        "num_gpu_blocks_override": 11, "max_num_seqs": 6, "max_num_batched_tokens": 96,
        "scheduling_policy": "priority", "max_model_len": 224,
    },
    "called_off": {
        "num_gpu_blocks_override": 11, "max_num_seqs": 6, "max_num_batched_tokens": 96,
        "scheduling_policy": "priority", "max_model_len": 224,
    },
    "resets": {"num_gpu_blocks_override": 40, "max_num_seqs": 6, "max_num_batched_tokens": 96},
    "again": {
        "num_gpu_blocks_override": 13, "max_num_seqs": 4, "max_num_batched_tokens": 64,
        "max_model_len": 384,
    },
    "grammars": {"num_gpu_blocks_override": 40, "max_num_seqs": 3, "max_num_batched_tokens": 64},
    "adapters": {
        "num_gpu_blocks_override": 40, "max_num_seqs": 4, "max_num_batched_tokens": 64,
        "enable_lora": True, "max_loras": 1, "max_lora_rank": 8,
    },
    "overlapped": {
        "num_gpu_blocks_override": 16, "max_num_seqs": 6, "max_num_batched_tokens": 64,
        "max_model_len": 256,
    },
    "groups": {
        "num_gpu_blocks_override": 54, "max_num_seqs": 4, "max_num_batched_tokens": 96,
    },
    "retained": {
        "num_gpu_blocks_override": 60, "max_num_seqs": 3, "max_num_batched_tokens": 128,
        "prefix_cache_retention_interval": 64,
    },
    "server": {"num_gpu_blocks_override": 160, "max_num_seqs": 48, "max_num_batched_tokens": 256},
}  # fmt: skip
OF_GEMMA = ("groups", "retained")  # on a Gemma 3 of random weights: two windows to a full layer
# name -> step -> what a user does before it: cached blocks are forgotten, or a request is aborted
ACTIONS: dict[str, dict[int, tuple[str, Any]]] = {
    "overlapped": {40: ("abort_request", ["4"]), 90: ("abort_request", ["9", "10"])},
    "retained": {70: ("reset_prefix_cache", True), 110: ("abort_request", ["9"])},
    "resets": {
        30: ("reset_prefix_cache", False), 60: ("reset_prefix_cache", True),
        61: ("reset_prefix_cache", True), 75: ("abort_request", ["1"]),
        90: ("reset_prefix_cache", False), 110: ("reset_prefix_cache", True),
        150: ("reset_prefix_cache", False),
    },
    "again": {20: ("abort_request", ["1"]), 45: ("abort_request", ["0", "2"])},
    "overtakes": {170: ("reset_prefix_cache", True), 190: ("abort_request", ["7"])},
    "called_off": {150: ("abort_request", [str(i) for i in range(32)])},
}  # fmt: skip
COMMON = {"dtype": "float32", "max_model_len": 768, "block_size": 32, "enforce_eager": True}
ENVIRONMENT = {
    "MINIVLLM_XRAY_CHECK": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",
    "PYTHONHASHSEED": "0",
}  # fmt: skip


def requests_of(name: str) -> list[tuple[int, str, int, int]]:
    """Requests of a run: step of arrival, prompt, length of the answer, and priority of each."""
    rng = random.Random(name)
    essay = [CHAT.format(topic) for topic in TOPICS]
    long = CHAT.format(" and ".join(TOPICS * 8))
    if name == "tight":
        return [(2 * i, essay[i], rng.randint(40, 90), 0) for i in range(8)]
    if name == "chunks":
        prompts = [essay[0], long, essay[1], RULES + essay[2], essay[3], long, essay[4], RULES]
        return [(3 * i, prompt, rng.randint(8, 30), 0) for i, prompt in enumerate(prompts)]
    if name == "prefixes":
        return [(4 * i, RULES + essay[i % 6], rng.randint(8, 40), 0) for i in range(12)]
    if name == "drafts":
        listing = "name: Ada, town: Bern, tea: black\n" * 5
        prompts = [listing, essay[0], listing + essay[1], essay[2] * 3, listing]
        return [(2 * i, prompt, 40, 0) for i, prompt in enumerate(prompts)]
    if name == "priorities":
        return [(5 * i, essay[i % 12], rng.randint(30, 60), (2, 2, 1, 0)[i % 4]) for i in range(12)]
    if name == "called_off":  # of requests that a plan has preempted, some had filled a block in it
        steps = [12 * (i // 4) + i % 4 for i in range(32)]
        return [(s, essay[i % 12], rng.randint(60, 130), 32 - i) for i, s in enumerate(steps)]
    if name == "overtakes":  # the later a pair of requests, the more important
        steps = [12 * (i // 4) + i % 4 for i in range(28)]
        return [(s, essay[i % 12], rng.randint(36, 60), 14 - i // 2) for i, s in enumerate(steps)]
    if name in ("resets", "again"):
        pause = 9 if name == "resets" else 5
        prompts = [RULES * (i % 2) + essay[i % 5] for i in range(16)]
        return [(pause * i, prompt, rng.randint(12, 50), 0) for i, prompt in enumerate(prompts)]
    if name == "overlapped":
        prompts = [RULES * (i % 2) + essay[i % 5] for i in range(20)]
        return [(4 * i, prompt, rng.randint(20, 90), 0) for i, prompt in enumerate(prompts)]
    if name in OF_GEMMA:  # a prefix that some have in common, and answers beyond the window
        prompts = [RULES * (i % 3 > 0) + essay[i % 4] + (long if i == 5 else "") for i in range(13)]
        return [(6 * i, prompt, rng.randint(12, 150), 0) for i, prompt in enumerate(prompts)]
    if name in ("grammars", "adapters"):
        return [(3 * i, essay[i % 12], rng.randint(20, 40), 0) for i in range(14)]
    # "waits": a quiet beginning, then a long prompt ahead, a crowd, and answers that fill the pool
    some = [(0, essay[0], 60, 0), (3, essay[1], 40, 0), (12, long, 30, 0)]
    some += [(14 + i, essay[2 + i], 20, 0) for i in range(4)]
    some += [(60 + i // 3, essay[i], rng.randint(20, 60), 0) for i in range(9)]
    some += [(110, RULES + long, 40, 0), (112, long, 60, 0), (113, RULES + essay[0], 90, 0)]
    return some + [(116 + 6 * i, essay[i], rng.randint(10, 40), 0) for i in range(10)]


def record(name: str, scheduler: str = "minivllm.xray.TracingScheduler") -> None:
    """Run vLLM in this process until all requests of a run are answered."""
    from vllm import LLM

    model = str(embedded_model_path())
    settings = COMMON | SETTINGS[name] | {"tokenizer": model}
    if name == "overlapped":
        scheduler = "minivllm.xray.AsyncTracingScheduler"
    with TemporaryDirectory() as folder:
        if name in OF_GEMMA:
            model = str(save_gemma(Path(folder) / "random-gemma3"))
        engine = LLM(model, scheduler_cls=scheduler, **settings).llm_engine
    if name == "overlapped":
        overlap(engine.engine_core.engine_core)
    to_come = list(enumerate(requests_of(name)))
    alive: set[str] = set()
    step = 0
    while to_come or engine.has_unfinished_requests():
        while to_come and to_come[0][1][0] <= step:
            index, (_, prompt, max_tokens, priority) = to_come[0]
            request_id = str(index % 5 if name in ("resets", "again") else index)
            if request_id in alive:  # the id can be used again when its request has ended
                break
            del to_come[0]
            alive.add(request_id)
            params, more = asked_beside(name, index, max_tokens)
            engine.add_request(request_id, prompt, params, priority=priority, **more)
        if (action := ACTIONS.get(name, {}).get(step)) is not None:
            getattr(engine, action[0])(action[1])
            alive -= set(action[1] or ()) if action[0] == "abort_request" else set()
        alive -= {output.request_id for output in engine.step() if output.finished}
        step += 1
    engine.engine_core.shutdown()


def save_gemma(folder: Path) -> Path:
    """Save a Gemma 3 of random weights for the embedded model's tokenizer."""
    import torch
    from transformers import AutoTokenizer, Gemma3ForCausalLM, Gemma3TextConfig

    tokenizer = AutoTokenizer.from_pretrained(embedded_model_path())
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=64, num_hidden_layers=6,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, query_pre_attn_scalar=32,
        sliding_window=64, layer_types=["sliding_attention", "sliding_attention",
                                        "full_attention"] * 2,
        max_position_embeddings=1024, eos_token_id=None, bos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    Gemma3ForCausalLM(config).save_pretrained(folder)
    return folder


def overlap(core: Any) -> None:
    """Let an engine core have two plans in flight, as vLLM has on a GPU and never on a CPU.

    Its scheduler and its loop are those of a GPU; the worker computes in a thread of its own.
    """
    thread, executor = ThreadPoolExecutor(1), core.model_executor
    execute, sample = executor.execute_model, executor.sample_tokens
    executor.execute_model = lambda plan, non_block: thread.submit(execute, plan)
    executor.sample_tokens = lambda grammar, non_block: thread.submit(sample, grammar)
    core.batch_queue_size = 2
    core.batch_queue = deque(maxlen=2)
    core.step_fn = core.step_with_batch_queue


def asked_beside(name: str, index: int, max_tokens: int) -> tuple[Any, dict[str, Any]]:
    """Sampling parameters of a run's request, and further arguments of ``add_request``."""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import StructuredOutputsParams

    more: dict[str, Any] = {}
    grammar = None
    if name == "grammars" and index % 3 == 2:
        words = "|".join(f"{chr(97 + i % 26)}{i}" for i in range(300 * index))
        grammar = StructuredOutputsParams(regex=f"({words}){{5,9}}")
    if name == "overtakes" and index % 2 and index > 4:
        more["arrival_time"] = time.time() - 0.06  # a client whose request was long on its way
    if name == "adapters" and index % 3:
        adapter = ("pirate", "sql-lora")[index % 2]
        path = str(embedded_adapter_path(adapter))
        more["lora_request"] = LoRARequest(adapter, 1 + index % 2, path)
    params = SamplingParams(
        temperature=0.0, max_tokens=max_tokens, ignore_eos=grammar is None,
        structured_outputs=grammar,
        stop_token_ids=[FULL_STOP] if name == "overlapped" and index % 3 == 0 else None,
    )  # fmt: skip
    return params, more


def main(folder: str, *names: str) -> None:
    """Record runs, each with a vLLM of its own, which says how many steps it has compared."""
    for name in names or SETTINGS:
        path = Path(folder) / f"{name}.jsonl"
        environment = os.environ | ENVIRONMENT | {"MINIVLLM_XRAY": str(path)}
        command = [sys.executable, __file__, "--record", name]
        if name == "server":
            command = [sys.executable, str(Path(__file__).with_name("record_server.py"))]
        done = subprocess.run(command, env=environment, capture_output=True)
        said = [line for line in done.stdout.decode().splitlines() if "X-ray" in line]
        print(name, *(said or [done.stderr.decode()[-2000:]]), sep="\n  ")
        if path.exists():
            Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
            path.unlink()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        record(sys.argv[2])
    else:
        main(*sys.argv[1:])
