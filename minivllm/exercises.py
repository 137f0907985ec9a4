"""``minivllm.exercises`` is ``minivllm.lab.exercises``, under the name that notebooks use."""

import sys

from minivllm.lab import exercises

sys.modules[__name__] = exercises
