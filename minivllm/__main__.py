"""``python -m minivllm`` is the ``minivllm`` command."""

from minivllm.cli import app

app(prog_name="minivllm")
