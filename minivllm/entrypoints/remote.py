"""RemoteModel: chat and completions at a server, with OpenAI's client.

(vLLM: vllm/entrypoints/cli/openai.py)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from openai import OpenAI
from rich.console import Console

from minivllm.entrypoints.terminal import ask, attempt, show

# Fields of ``SamplingParams`` that OpenAI's client has no argument for.
_EXTRA = ("top_k",)


class RemoteModel:
    """A model at a server.

    Args:
        url: of the server, with ``/v1`` or without.
        model: its name at the server; None for the server's first model.
        api_key: None for the value of ``OPENAI_API_KEY``, if it is set.
        params: fields of ``SamplingParams``.

    Raises:
        ValueError: if the server cannot list its models.
    """

    def __init__(self, url: str, model: str | None, api_key: str | None, params: dict[str, Any]):
        base = url.rstrip("/")
        base = base if base.endswith("/v1") else f"{base}/v1"
        key = api_key or os.environ.get("OPENAI_API_KEY", "EMPTY")
        known = {name: value for name, value in params.items() if name not in _EXTRA}
        self._params = known | {"extra_body": {name: params[name] for name in _EXTRA}}
        with _sentences(base):
            self._client: Any = OpenAI(api_key=key, base_url=base)
            self.model = model or self._client.models.list().data[0].id

    def chat(self, conversation: list[dict]) -> Iterator[str]:
        """The answer to a conversation, piece by piece."""
        with _sentences(self.model):
            stream = self._client.chat.completions.create(
                model=self.model, messages=conversation, stream=True, **self._params
            )
            with stream:  # closes the connection if the caller stops early
                for chunk in stream:
                    delta = chunk.choices[0].delta if chunk.choices else None
                    if delta is not None and delta.content:
                        yield delta.content

    def complete(self, prompt: str) -> Iterator[str]:
        """The completion of a prompt, piece by piece."""
        with _sentences(self.model):
            stream = self._client.completions.create(
                model=self.model, prompt=prompt, stream=True, **self._params
            )
            with stream:
                for chunk in stream:
                    if chunk.choices:
                        yield chunk.choices[0].text or ""


@contextmanager
def _sentences(what: str) -> Iterator[None]:
    """Context manager: errors of OpenAI's client become a ``ValueError``.

    So do errors from an answer that has not OpenAI's form.
    """
    try:
        yield
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"{what} does not answer as OpenAI's servers do: {error}") from error
    except Exception as error:  # a bad address raises another class than the client's
        raise ValueError(f"{what}: {error}") from error


def run_complete(remote: RemoteModel, quick: str | None) -> None:
    """Complete prompts that are typed, until an empty line, Ctrl-D or Ctrl-C.

    Args:
        remote: the model.
        quick: the only prompt; None to read prompts.
    """
    console = Console(highlight=False, emoji=False)
    if quick is not None:
        show(console, remote.complete(quick))
        return
    while prompt := ask(console):
        attempt(console, remote.complete(prompt))
