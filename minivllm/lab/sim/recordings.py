"""Recordings of vLLM's own scheduler: 60 workloads, 22 with drafts, 15 with adapters, others.

Ours decides the same. Their families are told in ``golden/README.md``.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json.gz"))
ASYNC_GOLDEN = sorted((Path(__file__).parent / "golden" / "async").glob("*.json.gz"))
HYBRID_GOLDEN = sorted((Path(__file__).parent / "golden" / "hybrid").glob("*.json.gz"))
LORA_GOLDEN = sorted((Path(__file__).parent / "golden" / "lora").glob("*.json.gz"))
PIPELINE_GOLDEN = sorted((Path(__file__).parent / "golden" / "pipeline").glob("*.json.gz"))
MULTIMODAL_GOLDEN = sorted((Path(__file__).parent / "golden" / "mm").glob("m*.json.gz"))
POOLING_GOLDEN = sorted((Path(__file__).parent / "golden" / "pooling").glob("*.json.gz"))
SPEC_GOLDEN = sorted((Path(__file__).parent / "golden" / "spec").glob("*.json.gz"))


def load_recording(path: Path) -> dict[str, Any]:
    """The recording as ``replay`` takes it, with the ``steps`` and ``results`` of vLLM."""
    return json.loads(gzip.decompress(path.read_bytes()))
