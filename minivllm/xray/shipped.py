"""shipped_run: the recorded run of vLLM that comes with the package."""

from __future__ import annotations

from pathlib import Path

from minivllm.xray.format import XRay, load_xray


def shipped_run() -> XRay:
    """29 requests to vLLM 0.32.0's CPU build and the embedded model, many of which wait.

    (Recorded by ``.ci/xray/record_runs.py``, there called "waits".)
    """
    return load_xray(Path(__file__).parent / "runs" / "waits.jsonl.gz")
