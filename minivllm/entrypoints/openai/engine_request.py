"""EngineRequest: the arguments of ``AsyncLLM.generate`` for one prompt of an HTTP request."""

from __future__ import annotations

from dataclasses import dataclass

from minivllm.sampling_params import BeamSearchParams, SamplingParams


@dataclass
class EngineRequest:
    """One prompt, with its parameters."""

    request_id: str
    prompt: dict
    params: SamplingParams | BeamSearchParams
    priority: int
