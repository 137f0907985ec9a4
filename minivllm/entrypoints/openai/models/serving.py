"""OpenAIServingModels: names of the served model. (vLLM: vllm/entrypoints/openai/models/)"""

from __future__ import annotations

import uuid
from http import HTTPStatus

from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.models.protocol import ModelCard, ModelList, ModelPermission
from minivllm.entrypoints.openai.serving import OpenAIServing


class OpenAIServingModels(OpenAIServing):
    """Endpoint /v1/models."""

    def show_models(self) -> ModelList:
        """List the model, with a card for each name."""
        return ModelList(data=[self._card(name) for name in self.served.names])

    def show_model(self, name: str) -> ModelCard:
        """The card of one name. OpenAI's API has this path; vLLM's server does not.

        Raises:
            RequestError: for a name that is not served.
        """
        if name not in self.served.names:
            raise RequestError(
                f"The model `{name}` does not exist.", "model", HTTPStatus.NOT_FOUND,
                "NotFoundError",
            )  # fmt: skip
        return self._card(name)

    def _card(self, name: str) -> ModelCard:
        permission = ModelPermission(id=f"modelperm-{uuid.uuid4().hex[:16]}")
        return ModelCard(
            id=name,
            root=str(self.args.model or "minivllm"),
            max_model_len=self.served.max_model_len,
            permission=[permission],
        )
