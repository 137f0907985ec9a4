"""Recordings of vLLM's own scheduler on 60 workloads; ours must decide the same.

Each was made by vLLM 0.32.0's V1 scheduler with the made-up model of ``replay``. The name says the
family: 0 plain decode, caching off; 1 chunked prefill; 2 long_prefill_token_threshold; 3 tight
memory; 4 shared prefixes; 5 shared prefixes in tight memory; 6 tight memory, caching off; 7 many
arrivals against max_num_seqs; 8 priority in tight memory; 9 priority against max_num_seqs; 10
chunked prefill off; 11 long chunked prompts in tight memory.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json.gz"))


def load_recording(path: Path) -> dict[str, Any]:
    """The recording as ``replay`` takes it, with the ``steps`` and ``results`` of vLLM."""
    return json.loads(gzip.decompress(path.read_bytes()))
