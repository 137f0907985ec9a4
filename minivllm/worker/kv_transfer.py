"""KVTransfer: a step of a worker with a KV connector around it.

(vLLM: vllm/v1/worker/kv_connector_model_runner_mixin.py)
"""

from __future__ import annotations

import time
from typing import Any

import torch

from minivllm.attention.kv_cache import KVCache, LayerKVCache
from minivllm.attention.quantized_kv import QuantizedKVCache
from minivllm.kv_transfer.base import KVConnectorBase, KVConnectorMetadata, KVConnectorRole
from minivllm.kv_transfer.factory import make_connector
from minivllm.scheduling.output import ModelRunnerOutput, SchedulerOutput
from minivllm.worker.model_runner import ModelRunner

_PAUSE = 0.001  # seconds: a step without tokens does not hurry to the next one


class KVTransfer:
    """The worker's side of a connector, called around each step.

    Layers are handed over before and after the forward pass, all of them: one compiled call may
    hold many layers.

    Args:
        connector: the worker's side.
        kv_cache: of this worker.
    """

    def __init__(self, connector: KVConnectorBase, kv_cache: KVCache):
        self.connector = connector
        caches = {name_of_layer(i): tensors_of(layer) for i, layer in enumerate(kv_cache.layers)}
        self.layers = list(caches)
        connector.register_kv_caches(caches)

    def execute_model(self, runner: ModelRunner, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Compute a step, with what the plan asks of the connector before and after it."""
        connector = self.connector
        if plan.reset:
            connector.forget_all()
        metadata = plan.kv_connector_metadata or KVConnectorMetadata()
        connector.start_load_kv(metadata)
        for layer in self.layers:
            connector.wait_for_layer_load(layer)
        output = runner.execute_model(plan)
        for layer in self.layers:
            connector.save_kv_layer(layer, metadata)
        connector.wait_for_save()
        output.kv_connector_output = connector.get_finished(plan.finished_req_ids)
        if not plan.num_scheduled_tokens and not output.kv_connector_output:
            time.sleep(_PAUSE)
        return output


def make_kv_transfer(config: Any, rank: int, kv_cache: KVCache) -> KVTransfer | None:
    """Make the KVTransfer of a worker; None if its engine has no connector.

    Args:
        config: the engine's VllmConfig.
        rank: of the worker, among those that share each layer.
        kv_cache: the worker's.
    """
    connector = make_connector(config, KVConnectorRole.WORKER, rank)
    return None if connector is None else KVTransfer(connector, kv_cache)


def name_of_layer(index: int) -> str:
    """The name of a layer in the whole model."""
    return f"model.layers.{index}.self_attn"


def tensors_of(layer: LayerKVCache) -> dict[str, torch.Tensor]:
    """The tensors of a layer's K and V by name, scales of single tokens included."""
    if not isinstance(layer, QuantizedKVCache):
        key, value = layer
        return {"key": key, "value": value}
    tensors = {"key": layer.key, "value": layer.value}
    if layer.key_scales is not None and layer.value_scales is not None:
        tensors |= {"key_scales": layer.key_scales, "value_scales": layer.value_scales}
    return tensors
