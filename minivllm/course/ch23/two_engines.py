"""Engines with the embedded model that hand prompts to each other, driven step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from minivllm.course.ch23.steady_connector import SteadyConnector
from minivllm.kv_transfer.base import KVConnectorBase
from minivllm.outputs import RequestOutput
from minivllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from minivllm.engine.llm_engine import LLMEngine


class Asked(NamedTuple):
    """A request, and when it comes.

    Attributes:
        step: of the engine, before which it is added.
        name: the request's id.
        prompt: a text.
        max_tokens: of its answer, which has as many.
        kv_transfer_params: what the connector is asked.
    """

    step: int
    name: str
    prompt: str
    max_tokens: int
    kv_transfer_params: dict[str, Any] | None = None


def make_engine(
    folder: str = "",
    kv_role: str = "",
    connector: type[KVConnectorBase] = SteadyConnector,
    num_blocks: int = 40,
) -> LLMEngine:
    """Make a small engine with blocks of 4 tokens, at most 16 tokens a step, and a trace.

    Args:
        folder: where K and V of prompts are sent and fetched.
        kv_role: "kv_producer", "kv_consumer" or "kv_both"; "" is an engine without a connector.
        connector: its class.
        num_blocks: of the pool, the null block included.
    """
    # imported only here: the exercises beside this file run without torch
    from minivllm.engine.arg_utils import EngineArgs
    from minivllm.engine.llm_engine import LLMEngine

    extra = {"shared_storage_path": folder}
    config = {
        "kv_connector": connector,
        "kv_role": kv_role,
        "kv_connector_extra_config": extra,
    }
    args = EngineArgs(
        block_size=4,
        num_gpu_blocks_override=num_blocks,
        max_model_len=64,
        max_num_batched_tokens=16,
        enable_prefix_caching=False,
        kv_transfer_config=config if kv_role else None,
        trace=True,
    )
    return LLMEngine(args)


def serve(engine: LLMEngine, *asked: Asked) -> dict[str, RequestOutput]:
    """Let an engine without requests serve these, greedily. Returns the answers by name."""
    to_come = sorted(asked, key=lambda one: one.step)
    said = {}
    while to_come or engine.has_unfinished_requests():
        while to_come and to_come[0].step <= engine.trace.num_steps:
            one = to_come.pop(0)
            params = SamplingParams(
                temperature=0,
                max_tokens=one.max_tokens,
                ignore_eos=True,
                extra_args={"kv_transfer_params": one.kv_transfer_params},
            )
            engine.add_request(one.name, one.prompt, params)
        said |= {output.request_id: output for output in engine.step() if output.finished}
    return said
