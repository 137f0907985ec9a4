"""Serialization of the core's outputs between processes: plain tuples, without field names.

(vLLM: vllm/v1/serial_utils.py, over msgpack)
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter

from minivllm.engine.core_outputs import EngineCoreOutput, EngineCoreOutputs
from minivllm.metrics.stats import SchedulerStats

_of_output = attrgetter(*(field.name for field in fields(EngineCoreOutput)))
_of_stats = attrgetter(*(field.name for field in fields(SchedulerStats)))
_of_all = attrgetter(*(field.name for field in fields(EngineCoreOutputs)))


def encode(outputs: EngineCoreOutputs) -> tuple:
    """Encode the outputs of a turn; ``decode`` reads them."""
    _, prompt_logprobs, timestamp, stats, *rest = _of_all(outputs)
    by_sequence = [_of_output(output) for output in outputs.outputs]
    return (by_sequence, prompt_logprobs, timestamp, stats and _of_stats(stats), *rest)


def decode(encoded: tuple) -> EngineCoreOutputs:
    """Decode the outputs that ``encode`` was given."""
    by_sequence, prompt_logprobs, timestamp, stats, *rest = encoded
    return EngineCoreOutputs(
        [EngineCoreOutput(*output) for output in by_sequence],
        prompt_logprobs,
        timestamp,
        stats and SchedulerStats(*stats),
        *rest,
    )
