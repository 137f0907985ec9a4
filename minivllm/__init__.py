"""minivllm: vLLM small enough to read.

The public names are imported when they are first used, so that ``import minivllm`` is quick and the
pure rooms (memory, scheduling, traces, figures) work without torch.
"""

from importlib import import_module

from minivllm.cpu.spin import bound_spinning
from minivllm.version import __version__

bound_spinning()

_HOME_OF = {
    "LLM": "minivllm.entrypoints.llm",
    "AsyncLLM": "minivllm.engine.async_llm",
    "AsyncLLMEngine": "minivllm.engine.async_llm",
    "AsyncEngineArgs": "minivllm.engine.arg_utils",
    "LLMEngine": "minivllm.engine.llm_engine",
    "EngineArgs": "minivllm.engine.arg_utils",
    "SamplingParams": "minivllm.sampling_params",
    "BeamSearchParams": "minivllm.sampling_params",
    "RequestOutput": "minivllm.outputs",
    "CompletionOutput": "minivllm.outputs",
    "PoolingParams": "minivllm.pooling_params",
    "PoolingRequestOutput": "minivllm.outputs",
    "PoolingOutput": "minivllm.outputs",
    "EmbeddingRequestOutput": "minivllm.outputs",
    "EmbeddingOutput": "minivllm.outputs",
    "ClassificationRequestOutput": "minivllm.outputs",
    "ClassificationOutput": "minivllm.outputs",
    "ScoringRequestOutput": "minivllm.outputs",
    "ScoringOutput": "minivllm.outputs",
    "Trace": "minivllm.trace",
    "embedded_model_path": "minivllm.embedded",
    "embedded_draft_path": "minivllm.embedded",
    "embedded_adapter_path": "minivllm.embedded",
    "embedded_embedder_path": "minivllm.embedded",
    "embedded_classifier_path": "minivllm.embedded",
    "embedded_vision_path": "minivllm.embedded",
    "set_language": "minivllm.lab.translation.importing",
}

__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str):
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'minivllm' has no attribute {name!r}")


def __dir__():
    return sorted(__all__)
