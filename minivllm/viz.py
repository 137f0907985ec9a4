"""``minivllm.viz`` is ``minivllm.lab.viz``, under the name that notebooks use."""

import sys

from minivllm.lab import viz

sys.modules[__name__] = viz
