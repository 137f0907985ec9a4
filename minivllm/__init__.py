"""minivllm: vLLM small enough to read.

The public names are imported when they are first used, so that ``import minivllm`` is quick and the
pure rooms (memory, scheduling, traces, figures) work without torch.
"""

import os
import sys
from importlib import import_module

from minivllm.version import __version__


def _spin_count() -> str:
    """``SPIN_COUNT`` for this processor, as measured with AVX-512 and without it."""
    try:
        with open("/proc/cpuinfo") as cpuinfo:
            return "20000" if "avx512f" in cpuinfo.read(4096) else "5000"
    except OSError:  # not Linux: the bound has no effect
        return "5000"


SPIN_COUNT = _spin_count()
"""How often an OpenMP thread on Linux looks whether all others have arrived before it sleeps.

Without a bound it looks for milliseconds, on a processor that the others may be waiting for: beside
one other busy process two threads are then ten times slower than alone. A bound prevents that, and
costs speed on an idle machine, of which at most a twentieth is given. With AVX-512, 5,000 cost an
eighth and 10,000 a twelfth; without it, 5,000 cost nothing."""


def _bound_spinning() -> str:
    """Set ``GOMP_SPINCOUNT``, which libgomp reads when torch is loaded. Returns the log's words."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        if name in os.environ:
            return f"{name}={os.environ[name]} as in the environment"
    if "torch" in sys.modules:
        return "unbounded, since torch was imported before minivllm"
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    return f"GOMP_SPINCOUNT={SPIN_COUNT}"


spinning = _bound_spinning()

_HOME_OF = {
    "LLM": "minivllm.entrypoints.llm",
    "AsyncLLM": "minivllm.engine.async_llm",
    "AsyncLLMEngine": "minivllm.engine.async_llm",
    "AsyncEngineArgs": "minivllm.engine.arg_utils",
    "LLMEngine": "minivllm.engine.llm_engine",
    "EngineArgs": "minivllm.engine.arg_utils",
    "SamplingParams": "minivllm.sampling_params",
    "BeamSearchParams": "minivllm.sampling_params",
    "RequestOutput": "minivllm.outputs",
    "CompletionOutput": "minivllm.outputs",
    "Trace": "minivllm.trace",
    "embedded_model_path": "minivllm.embedded",
    "embedded_draft_path": "minivllm.embedded",
}

__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str):
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'minivllm' has no attribute {name!r}")


def __dir__():
    return sorted(__all__)
