"""ServedModel: an engine, its served names, and the server's options."""

from __future__ import annotations

import hashlib
from argparse import Namespace
from http import HTTPStatus

from minivllm.engine.async_llm import AsyncLLM
from minivllm.entrypoints.chat_utils import load_chat_template
from minivllm.entrypoints.openai.errors import RequestError
from minivllm.version import __version__


class ServedModel:
    """The engine and what the command line says of how it is served: one for all endpoints.

    Args:
        engine: runs all requests.
        args: of the server, see ``cli_args``.
    """

    def __init__(self, engine: AsyncLLM, args: Namespace):
        self.engine = engine
        self.args = args
        self.names: list[str] = args.served_model_name or [args.model or "minivllm"]
        self.chat_template = load_chat_template(args.chat_template)
        settings = repr(sorted(vars(engine.args).items(), key=str)).encode()
        digest = hashlib.sha256(settings).hexdigest()[:8]
        self.fingerprint = f"minivllm-{__version__}-{digest}"
        self.default_sampling = dict(engine.model_config.default_sampling)
        if args.generation_config == "vllm":
            self.default_sampling = {}
        self.default_sampling |= args.override_generation_config
        if "max_new_tokens" in self.default_sampling:
            self.default_sampling["max_tokens"] = self.default_sampling.pop("max_new_tokens")
        tokenizer = engine.tokenizer
        # No token stands for more characters than this, so a much longer text cannot fit.
        self.longest_token = 1 if tokenizer is None else max(map(len, tokenizer.get_vocab()))

    @property
    def max_model_len(self) -> int:
        return self.engine.max_model_len

    def check_model(self, name: str | None) -> None:
        """Raise a 404 for a model that is not served; no name is the first."""
        if name and name not in self.names:
            raise RequestError(
                f"The model `{name}` does not exist; served are: {', '.join(self.names)}.",
                "model",
                HTTPStatus.NOT_FOUND,
                "NotFoundError",
            )

    def check_queue(self) -> None:
        """Raise a 503 if as many requests wait already as ``--max-num-queued-reqs`` allows."""
        most = self.args.max_num_queued_reqs
        if most is not None and self.engine.num_queued >= most:
            raise RequestError(
                f"{most} requests wait already, which is the limit; try again later",
                status=HTTPStatus.SERVICE_UNAVAILABLE,
                kind="Service Unavailable",
            )
