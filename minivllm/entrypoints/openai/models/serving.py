"""OpenAIServingModels: names of the served model and of its adapters.

(vLLM: vllm/entrypoints/openai/models/serving.py)
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from dataclasses import replace
from http import HTTPStatus
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from minivllm.engine.async_llm import AsyncLLM
from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.models.protocol import (
    BaseModelPath,
    LoadLoRAAdapterRequest,
    LoRAModulePath,
    ModelCard,
    ModelList,
    ModelPermission,
    UnloadLoRAAdapterRequest,
)
from minivllm.logger import init_logger
from minivllm.lora.request import LoRARequest

logger = init_logger(__name__)


class OpenAIServingModels:
    """Table of names: those of the base model, which are fixed, and those of adapters.

    Args:
        engine: reads the adapters.
        base_model_paths: names of the base model; the first is in answers.
    """

    def __init__(self, engine: AsyncLLM, base_model_paths: list[BaseModelPath]):
        self.engine = engine
        self.base_model_paths = base_model_paths
        self.lora_requests: dict[str, LoRARequest] = {}  # by name, in the order of loading
        self._lora_ids = count(1)
        # While an adapter is read, others of its name wait.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def is_base_model(self, name: str) -> bool:
        return any(base.name == name for base in self.base_model_paths)

    def model_name(self, lora_request: LoRARequest | None = None) -> str:
        """Return the name that an answer has: the adapter's, or the first of the base model."""
        return self.base_model_paths[0].name if lora_request is None else lora_request.lora_name

    def check_model(self, name: str | None) -> LoRARequest | None:
        """Find the adapter that a request names. None is the base model, and so is no name.

        Raises:
            RequestError: a 404 for a name that is not served.
        """
        if not name or self.is_base_model(name):
            return None
        if name not in self.lora_requests:
            names = [base.name for base in self.base_model_paths]
            served = ", ".join([*names, *self.lora_requests])
            raise _not_found(f"The model `{name}` does not exist; served are: {served}.", "model")
        return self.lora_requests[name]

    # -- cards -------------------------------------------------------------------------------

    def show_models(self) -> ModelList:
        """List the names, a card for each: the base model's first."""
        max_model_len = self.engine.max_model_len
        cards = [
            _card(base.name, root=base.model_path, max_model_len=max_model_len)
            for base in self.base_model_paths
        ]
        for lora in self.lora_requests.values():
            parent = lora.base_model_name or self.model_name()
            cards.append(_card(lora.lora_name, root=lora.lora_path, parent=parent))
        return ModelList(data=cards)

    def show_model(self, name: str) -> ModelCard:
        """The card of one name. OpenAI's API has this path; vLLM's server does not.

        Raises:
            RequestError: for a name that is not served.
        """
        for card in self.show_models().data:
            if card.id == name:
                return card
        raise _not_found(f"The model `{name}` does not exist.", "model")

    # -- adapters ----------------------------------------------------------------------------

    async def init_static_loras(self, modules: Iterable[LoRAModulePath]) -> None:
        """Load the adapters that the command line names.

        Raises:
            ValueError: for the first that cannot be loaded.
        """
        for module in modules:
            request = LoadLoRAAdapterRequest(lora_name=module.name, lora_path=module.path)
            try:
                await self.load_lora_adapter(request, module.base_model_name)
            except RequestError as error:
                raise ValueError(error.info.message) from error

    async def load_lora_adapter(
        self, request: LoadLoRAAdapterRequest, base_model_name: str | None = None
    ) -> str:
        """Read an adapter, and give it a name. Returns the sentence that says so.

        Args:
            request: name and path; ``load_inplace`` reads again what the name has, or another path.
            base_model_name: the adapter's parent, if that is served; else it is the first name.

        Raises:
            RequestError, ValueError: if it cannot be loaded; nothing has changed then.
        """
        name = request.lora_name
        path = request.lora_path
        async with self._locks.setdefault(name, asyncio.Lock()):
            self._check_load(request)
            known = self.lora_requests.get(name)
            base = base_model_name if self.is_base_model(base_model_name or "") else None
            lora = LoRARequest(
                lora_name=name,
                lora_int_id=next(self._lora_ids) if known is None else known.lora_int_id,
                lora_path=path,
                base_model_name=base,
                load_inplace=request.load_inplace,
            )
            try:
                await self.engine.add_lora(lora)
            except ValueError as error:
                missing = f"Loading lora {name} failed: No adapter found for {path}"
                raise (_not_found(missing) if str(error) == missing else error) from error
            # Requests share what was read now: each of them would read it again.
            self.lora_requests[name] = replace(lora, load_inplace=False)
        logger.info("Loaded new LoRA adapter: name '%s', path '%s'", name, path)
        return f"Success: LoRA adapter '{name}' added successfully."

    async def unload_lora_adapter(self, request: UnloadLoRAAdapterRequest) -> str:
        """Take an adapter's name away. Its requests go on, and the engine drops it when it must.

        Raises:
            RequestError: if there is no such adapter.
        """
        name = request.lora_name
        if not name:
            raise _bad_input("'lora_name' needs to be provided to unload a LoRA adapter.")
        async with self._locks.setdefault(name, asyncio.Lock()):
            if name not in self.lora_requests:
                raise _not_found(f"The lora adapter '{name}' cannot be found.")
            del self.lora_requests[name]
        logger.info("Removed LoRA adapter: name '%s'", name)
        return f"Success: LoRA adapter '{name}' removed successfully."

    def _check_load(self, request: LoadLoRAAdapterRequest) -> None:
        """Raise a ``RequestError`` for an adapter that the engine need not look at."""
        name = request.lora_name
        if self.engine.vllm_config.lora_config is None:
            raise _bad_input("LoRA is not enabled; start the server with --enable-lora.")
        if not name or not request.lora_path:
            raise _bad_input("Both 'lora_name' and 'lora_path' must be provided.")
        if self.is_base_model(name):
            raise _bad_input(f"The lora adapter '{name}' conflicts with a served base model.")
        if name in self.lora_requests and not request.load_inplace:
            raise _bad_input(
                f"The lora adapter '{name}' has already been loaded. If you want to load the "
                "adapter in place, set 'load_inplace' to True."
            )


def _card(name: str, **fields: Any) -> ModelCard:
    permission = ModelPermission(id=f"modelperm-{uuid.uuid4().hex[:16]}")
    return ModelCard(id=name, permission=[permission], **fields)


def _bad_input(message: str) -> RequestError:
    return RequestError(message, kind="InvalidUserInput")


def _not_found(message: str, param: str | None = None) -> RequestError:
    return RequestError(message, param, status=HTTPStatus.NOT_FOUND, kind="NotFoundError")
