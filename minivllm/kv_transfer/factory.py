"""Connectors by name. (vLLM: vllm/distributed/kv_transfer/kv_connector/factory.py)"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from minivllm.kv_transfer.base import KVConnectorBase, KVConnectorRole

CONNECTORS = {"ExampleConnector": "minivllm.kv_transfer.example_connector"}


def connector_class(kv_connector: Any) -> type[KVConnectorBase]:
    """The class that ``kv_connector`` names, or is.

    Raises:
        ValueError: if there is none.
    """
    if isinstance(kv_connector, type) and issubclass(kv_connector, KVConnectorBase):
        return kv_connector
    if not isinstance(kv_connector, str) or kv_connector not in CONNECTORS:
        raise ValueError(
            f"Unsupported connector type: {kv_connector}; kv_connector is one of "
            f"{sorted(CONNECTORS)} or a subclass of KVConnectorBase."
        )
    return getattr(import_module(CONNECTORS[kv_connector]), kv_connector)


def make_connector(config: Any, role: KVConnectorRole, rank: int = 0) -> KVConnectorBase | None:
    """Make one side of an engine's connector; None unless its VllmConfig has one."""
    if config.kv_transfer_config is None:
        return None
    return connector_class(config.kv_transfer_config.kv_connector)(config, role, rank)
