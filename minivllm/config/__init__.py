"""Configuration: what an engine is told, in groups. (vLLM: vllm/config/)"""

from minivllm.config.vllm import (
    ATTENTION_BACKENDS,
    DEVICES,
    DTYPES,
    LOAD_FORMATS,
    CacheConfig,
    DeviceConfig,
    Limits,
    LoadConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)

__all__ = [
    "ATTENTION_BACKENDS",
    "DEVICES",
    "DTYPES",
    "LOAD_FORMATS",
    "CacheConfig",
    "DeviceConfig",
    "Limits",
    "LoadConfig",
    "ObservabilityConfig",
    "ParallelConfig",
    "SchedulerConfig",
    "VllmConfig",
]
