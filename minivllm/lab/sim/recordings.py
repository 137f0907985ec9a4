"""Recordings of vLLM's own scheduler on 60 workloads, 22 more with drafts: ours decides the same.

Each was made by vLLM 0.32.0's V1 scheduler with the made-up model of ``replay``. The name says the
family: 0 plain decode, caching off; 1 chunked prefill; 2 long_prefill_token_threshold; 3 tight
memory; 4 shared prefixes; 5 shared prefixes in tight memory; 6 tight memory, caching off; 7 many
arrivals against max_num_seqs; 8 priority in tight memory; 9 priority against max_num_seqs; 10
chunked prefill off; 11 long chunked prompts in tight memory.

With drafts (``SPEC_GOLDEN``): 12 drafts as of n-grams, caching off; 13 budgets that cut drafts; 14
tight memory, caching off; 15 shared prefixes; 16 a draft model; 17 a draft model in tight memory;
18 ends amid accepted drafts; 19 admissions that lack one token; 20 priority in tight memory; 21
long_prefill_token_threshold below the drafts, or chunked prefill off; 22 as 19, near max_model_len.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json.gz"))
SPEC_GOLDEN = sorted((Path(__file__).parent / "golden" / "spec").glob("*.json.gz"))


def load_recording(path: Path) -> dict[str, Any]:
    """The recording as ``replay`` takes it, with the ``steps`` and ``results`` of vLLM."""
    return json.loads(gzip.decompress(path.read_bytes()))
