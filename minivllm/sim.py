"""``minivllm.sim`` is ``minivllm.lab.sim``, under the name that notebooks and commands use."""

import sys

from minivllm.lab import sim

if __name__ == "__main__":
    from minivllm.lab.sim.__main__ import app

    app(prog_name="python -m minivllm.sim")
else:
    sys.modules[__name__] = sim
