"""X-ray of a real vLLM: what its scheduler decides, as our Trace.

``load_xray`` reads a file that the tracer has written. The schedulers import vLLM, and nothing else
does: their names are looked up when they are first used.
"""

from importlib import import_module

_HOME_OF = {
    "XRay": "minivllm.xray.format",
    "load_xray": "minivllm.xray.format",
    "TracingScheduler": "minivllm.xray.tracer",
    "AsyncTracingScheduler": "minivllm.xray.tracer",
    "shipped_run": "minivllm.xray.shipped",
    "traces": "minivllm.xray.tracer",
    "PolicyScheduler": "minivllm.xray.policy",
    "report": "minivllm.xray.reports",
    "verify": "minivllm.xray.verification",
    "what_if": "minivllm.xray.scenarios",
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str):
    if name not in _HOME_OF:
        raise AttributeError(f"module 'minivllm.xray' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)
