"""resolve_async_scheduling: may steps be planned while the one before them runs?

(vLLM: ``VllmConfig`` in vllm/config/vllm.py)
"""

from __future__ import annotations

from minivllm.config.parallel import ParallelConfig
from minivllm.config.speculative import SpeculativeConfig
from minivllm.logger import init_logger

logger = init_logger(__name__)


def resolve_async_scheduling(
    asked: bool | None,
    is_on_cpu: bool,
    runner_type: str,
    speculative_config: SpeculativeConfig | None,
    parallel_config: ParallelConfig,
) -> bool:
    """Settle ``async_scheduling``; None is yes on a GPU, unless something cannot do with it.

    Raises:
        ValueError: if it was asked for and something cannot do with it.
    """
    may = parallel_config.supports_async_scheduling
    backend = parallel_config.backend
    if asked:
        if speculative_config is not None and speculative_config.method == "draft_model":
            raise ValueError(
                "async_scheduling=True with a draft model, as vLLM has it, is left out here; "
                "choose one of them."
            )
        if speculative_config is not None:
            raise ValueError(
                "Currently, async scheduling is only supported with EAGLE/MTP/Draft Model/NGram "
                "GPU/DSpark/DFlash kind of speculative decoding"
            )
        if parallel_config.pipeline_parallel_size > 1:
            raise ValueError(
                "async_scheduling=True with pipeline_parallel_size="
                f"{parallel_config.pipeline_parallel_size}, as vLLM has it, is left out here: "
                "several stages overlap by themselves."
            )
        if not may:
            raise ValueError(f"`{backend}` does not support async scheduling yet.")
        return True
    if asked is False or is_on_cpu or parallel_config.pipeline_parallel_size > 1:
        return False
    if runner_type == "pooling":
        logger.debug("Disabling asynchronous scheduling by default for pooling model.")
        return False
    if speculative_config is not None:
        logger.warning(
            "Async scheduling not supported with %s-based speculative decoding and will be "
            "disabled.",
            speculative_config.method,
        )
        return False
    if not may:
        logger.warning(
            "Async scheduling will be disabled because it is not supported with the `%s` "
            "distributed executor backend. ",
            backend,
        )
    return may
