"""Check what-if against vLLM: four kinds of load, recorded with each setting and told beforehand.

``python .ci/xray/check_what_if.py MODEL [FOLDER]`` with vLLM's Python, on a quiet machine. The
runs stay in FOLDER, if one is named.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from overhead import requests
from record_runs import ENVIRONMENT

from minivllm.xray.format import XRay, read_header
from minivllm.xray.scenarios import Case, parse_changes, what_if

BASE = {"max_num_batched_tokens": 2048, "max_num_seqs": 64, "num_gpu_blocks_override": 520}
# words of --what-if, and the same for vLLM
CHANGES: dict[str, dict[str, int]] = {
    "": {},
    "max_num_batched_tokens=x0.5": {"max_num_batched_tokens": 1024},
    "num_blocks=x0.5": {"num_gpu_blocks_override": 260},
    "max_num_seqs=x0.5": {"max_num_seqs": 32},
    "max_num_seqs=8": {"max_num_seqs": 8},
}
KINDS = ("saturated", "idle", "bursty", "mixed")
_WARM_UP = "warm up"


class Asked(NamedTuple):
    """A request: seconds until it comes, token ids of its prompt, length of its answer."""

    after: float
    prompt: list[int]
    max_tokens: int


def workload(kind: str) -> list[Asked]:
    """Make the requests of a kind of load, the earliest first."""
    some = requests()
    rng = random.Random(kind)
    if kind == "saturated":
        return [Asked(0, prompt, n) for prompt, n in some]
    if kind == "idle":  # each is answered before the next comes
        return [Asked(0.5 * i, prompt, n) for i, (prompt, n) in enumerate(some[:12])]
    if kind == "bursty":
        return [Asked(1.5 * (i // 16), prompt, n) for i, (prompt, n) in enumerate(some)]
    if kind == _WARM_UP:
        return [Asked(0.1 * i, prompt, n) for i, (prompt, n) in enumerate(some[:8])]
    after = 0.0
    made = []
    for i, (prompt, max_tokens) in enumerate(some):  # "mixed": every sixth prompt is long
        after += rng.expovariate(14)
        made.append(Asked(after, prompt * 3 if i % 6 == 5 else prompt, max_tokens))
    return made


async def record(model: str, arguments: dict[str, Any]) -> None:
    """Send all loads to a vLLM whose engine is a process of its own, as that of its server."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(
        model, dtype="float32", enforce_eager=True, max_model_len=1024, block_size=32,
        skip_tokenizer_init=True, enable_prefix_caching=False, disable_log_stats=True,
        scheduler_cls="minivllm.xray.TracingScheduler", **arguments,
    ))  # fmt: skip
    for kind in (_WARM_UP, *KINDS):
        streams = [_send(engine, f"{kind}-{i}", asked) for i, asked in enumerate(workload(kind))]
        await asyncio.gather(*streams)
        await asyncio.sleep(0.5)
    engine.shutdown()


async def _send(engine: Any, request_id: str, asked: Asked) -> None:
    from vllm import SamplingParams

    await asyncio.sleep(asked.after)
    params = SamplingParams(
        temperature=0.0, max_tokens=asked.max_tokens, ignore_eos=True, detokenize=False
    )
    async for _ in engine.generate({"prompt_token_ids": asked.prompt}, params, request_id):
        pass


def runs_of(path: Path) -> dict[str, XRay]:
    """The runs in a file, by the kind of load, each as if the engine had begun with it."""
    runs: dict[str, XRay] = {}
    first = 0
    kind = ""
    with open(path, encoding="utf-8") as file:
        header = next(file)
        for line in file:
            content = json.loads(line)
            if "ended" in content:
                break
            for request_id in content["requests"]:
                kind = request_id.rpartition("-")[0]
            if kind not in runs:
                runs[kind] = read_header(header)
                first = content["step"] + 1
            step = content["step"] - first
            runs[kind].read_step(step, content["records"], content["requests"])
    return runs


def record_all(model: str, folder: Path) -> Iterator[tuple[str, dict[str, XRay]]]:
    """Yield each change and its runs, recorded by a vLLM of its own."""
    for change, arguments in CHANGES.items():
        path = folder / f"{change or 'base'}.jsonl"
        environment = os.environ | ENVIRONMENT
        environment |= {"MINIVLLM_XRAY": str(path), "MINIVLLM_XRAY_CHECK": "0",
                        "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}  # fmt: skip
        command = [sys.executable, __file__, model, "--record",
                   json.dumps(BASE | arguments)]  # fmt: skip
        subprocess.run(command, env=environment, check=True, capture_output=True)
        yield change, runs_of(path)


def compare(change: str, kind: str, told: Case, real: Case) -> str:
    """One line: what was told, as a multiple of what vLLM then did."""
    return (
        f"{change or 'the same':28} {kind:10} "
        f"TTFT {told.mean_ttft / real.mean_ttft:.2f} x of {1000 * real.mean_ttft:.1f} ms, "
        f"ITL {told.mean_itl / real.mean_itl:.2f} x of {1000 * real.mean_itl:.1f} ms, "
        f"tokens/s {told.tokens_per_second / real.tokens_per_second:.2f} x of "
        f"{real.tokens_per_second:.0f}"
    )


def main(model: str, folder: Path) -> None:
    """Print for each change and load what was told, beside what vLLM did."""
    base: dict[str, XRay] = {}
    for change, runs in record_all(model, folder):
        base = base or runs
        for kind in KINDS:
            found = what_if(base[kind], *parse_changes([change] if change else []))
            real = what_if(runs[kind]).cases[0]
            print(compare(change, kind, found.cases[-1], real=real), flush=True)


if __name__ == "__main__":
    if sys.argv[2:3] == ["--record"]:
        asyncio.run(record(sys.argv[1], json.loads(sys.argv[3])))
    elif len(sys.argv) == 3:
        main(sys.argv[1], Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(sys.argv[1], Path(made))
