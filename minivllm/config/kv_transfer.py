"""KVTransferConfig: does an engine send K and V to others, or get them from there?

(vLLM: vllm/config/kv_transfer.py)
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from minivllm.utils.validation import check

KV_ROLES = ("kv_producer", "kv_both", "kv_consumer")  # in vLLM's order, for its sentence
LOAD_FAILURE_POLICIES = ("fail", "recompute")


@dataclass(frozen=True)
class KVTransferConfig:
    """The KV connector of an engine and its part in it.

    Args:
        kv_connector: "ExampleConnector", or a subclass of KVConnectorBase of your own.
        kv_role: "kv_producer" sends, "kv_consumer" fetches, "kv_both" does both.
        kv_connector_extra_config: what the connector reads, by name.
        kv_load_failure_policy: what becomes of a request whose K and V do not come: "fail" ends it
            with an error, "recompute" computes its prompt here.
        engine_id: names this engine to others; None: one of its own.

    Raises:
        ValueError: by name, for what is not allowed.
    """

    kv_connector: Any = None
    kv_role: str | None = None
    kv_connector_extra_config: dict[str, Any] = field(default_factory=dict)
    kv_load_failure_policy: str = "fail"
    engine_id: str | None = None

    def __post_init__(self) -> None:
        if self.kv_role is not None and self.kv_role not in KV_ROLES:
            raise ValueError(f"Unsupported kv_role: {self.kv_role}. Supported roles are {KV_ROLES}")
        if self.kv_connector is not None and self.kv_role is None:
            raise ValueError(
                f"Please specify kv_role when kv_connector is set, supported roles are {KV_ROLES}"
            )
        ok = self.kv_connector is None or isinstance(self.kv_connector, (str, type))
        check(ok, "kv_connector", self.kv_connector, "a name or a class")
        extra = self.kv_connector_extra_config
        check(isinstance(extra, dict), "kv_connector_extra_config", extra, "an object")
        policy = self.kv_load_failure_policy
        ok = policy in LOAD_FAILURE_POLICIES
        check(ok, "kv_load_failure_policy", policy, f"one of {LOAD_FAILURE_POLICIES}")
        ok = self.engine_id is None or isinstance(self.engine_id, str)
        check(ok, "engine_id", self.engine_id, "a string")
        if self.engine_id is None:
            object.__setattr__(self, "engine_id", str(uuid.uuid4()))

    @classmethod
    def from_value(cls, value: Any) -> KVTransferConfig | None:
        """Make a config of what ``kv_transfer_config`` may be: one, an object of names, or None.

        Without a connector there is none.

        Raises:
            ValueError: for a name that is unknown, or as the constructor does.
        """
        if isinstance(value, Mapping):
            names = [each.name for each in fields(cls)]
            for name in value:
                check(name in names, f"kv_transfer_config[{name!r}]", value[name], f"in {names}")
            value = cls(**value)
        ok = value is None or isinstance(value, cls)
        check(ok, "kv_transfer_config", value, "a KVTransferConfig or an object of its names")
        return None if value is None or value.kv_connector is None else value

    @property
    def is_kv_producer(self) -> bool:
        return self.kv_role in ("kv_producer", "kv_both")

    @property
    def is_kv_consumer(self) -> bool:
        return self.kv_role in ("kv_consumer", "kv_both")


def resolve_kv_transfer(
    value: Any, async_scheduling: bool | None, has_draft_model: bool, num_stages: int
) -> KVTransferConfig | None:
    """Make an engine's KVTransferConfig; with one, no step is planned while another runs.

    Args:
        value: what the engine was given as ``kv_transfer_config``.
        async_scheduling: if it was asked for; None: not.
        has_draft_model: True if it drafts by a model.
        num_stages: of its pipeline.

    Raises:
        ValueError: for a config that is wrong, or beside what a connector cannot do with.
    """
    config = KVTransferConfig.from_value(value)
    if config is None:
        return None
    allowed = "None beside {}: a connector does without it here"
    for name, ok in (
        ("a draft model", not has_draft_model),
        ("async_scheduling=True", not async_scheduling),
        ("pipeline_parallel_size > 1", num_stages == 1),
    ):
        check(ok, "kv_transfer_config", config.kv_connector, allowed.format(name))
    return config
