"""Compare what-if with vLLM: the workload W1 recorded with changed settings, and told beforehand.

``python -m minivllm.xray.changes MODEL`` with vLLM's Python; each run has a vLLM of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from minivllm.xray.format import load_xray
from minivllm.xray.overhead import requests
from minivllm.xray.record_runs import ENVIRONMENT
from minivllm.xray.scenarios import Case, parse_changes, what_if

BASE = {"max_num_batched_tokens": 2048, "max_num_seqs": 64, "num_gpu_blocks_override": 520}
# a setting of --what-if, and the same one of vLLM's
CHANGES: dict[str, dict[str, int]] = {
    "": {},
    "max_num_batched_tokens=1024": {"max_num_batched_tokens": 1024},
    "num_blocks=260": {"num_gpu_blocks_override": 260},
    "max_num_seqs=8": {"max_num_seqs": 8},
}


def record(model: str, arguments: dict[str, Any]) -> None:
    """Run W1 once in this process, after a few short requests that warm vLLM up."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model, dtype="float32", enforce_eager=True, max_model_len=1024, block_size=32,
        skip_tokenizer_init=True, enable_prefix_caching=False,
        scheduler_cls="minivllm.xray.TracingScheduler", **arguments,
    )  # fmt: skip
    for some in (requests()[:4], requests()):
        prompts = [{"prompt_token_ids": prompt} for prompt, _ in some]
        params = [
            SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, detokenize=False)
            for _, n in some
        ]
        llm.generate(prompts, params, use_tqdm=False)
    llm.llm_engine.engine_core.shutdown()


def main(model: str) -> None:
    """Print for each change what was told, as a multiple of what vLLM then did."""
    measured: dict[str, Case] = {}
    with tempfile.TemporaryDirectory() as folder:
        for change, arguments in CHANGES.items():
            path = Path(folder) / f"{change or 'base'}.jsonl"
            environment = os.environ | ENVIRONMENT
            environment |= {"MINIVLLM_XRAY": str(path), "MINIVLLM_XRAY_CHECK": "0",
                            "OMP_NUM_THREADS": str(os.cpu_count())}  # fmt: skip
            command = [sys.executable, "-m", "minivllm.xray.changes", model,
                       json.dumps(BASE | arguments)]  # fmt: skip
            subprocess.run(command, env=environment, check=True, capture_output=True)
            measured[change] = what_if(load_xray(path)).cases[0]
            if not change:
                base = load_xray(path)
    told = what_if(base, *(c for change in CHANGES if change for c in parse_changes([change])))
    for (change, real), case in zip(measured.items(), told.cases[1:], strict=True):
        ttft = case.mean_ttft / real.mean_ttft
        speed = case.tokens_per_second / real.tokens_per_second
        print(f"{change or 'the same':28} TTFT {ttft:.2f} x of {real.mean_ttft:.3f} s, "
              f"tokens/s {speed:.2f} x of {real.tokens_per_second:.0f}")  # fmt: skip
    print(told.cost)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        record(sys.argv[1], json.loads(sys.argv[2]))
    else:
        main(sys.argv[1])
