"""X-ray of a real vLLM: what its scheduler decides, as our Trace.

``load_xray`` reads a file that the tracer has written.
"""

from minivllm.xray.format import XRay, load_xray

__all__ = ["XRay", "load_xray"]
