"""ServedModel: an engine, its names, and the server's options."""

from __future__ import annotations

import hashlib
from argparse import Namespace
from http import HTTPStatus

from starlette.types import Scope

from minivllm.engine.async_llm import AsyncLLM
from minivllm.entrypoints.chat_utils import load_chat_template
from minivllm.entrypoints.openai.errors import RequestError
from minivllm.entrypoints.openai.models.protocol import BaseModelPath
from minivllm.entrypoints.openai.models.serving import OpenAIServingModels
from minivllm.metrics.reader import Counter
from minivllm.version import __version__

ADMITTED = "minivllm.admitted"  # key in an HTTP request's scope: its number of sequences


class ServedModel:
    """An engine with its names and options, shared by all endpoints.

    Args:
        engine: runs all requests.
        args: of the server, see ``cli_args``.
    """

    def __init__(self, engine: AsyncLLM, args: Namespace):
        self.engine = engine
        self.args = args
        root = str(args.model or "minivllm")
        names: list[str] = args.served_model_name or [root]
        self.models = OpenAIServingModels(engine, [BaseModelPath(name, root) for name in names])
        self.chat_template = load_chat_template(args.chat_template)
        settings = repr(sorted(vars(engine.args).items(), key=str)).encode()
        digest = hashlib.sha256(settings).hexdigest()[:8]
        self.fingerprint = f"minivllm-{__version__}-{digest}"
        self.default_sampling = dict(engine.model_config.default_sampling)
        tokenizer = engine.tokenizer
        # Characters of the longest token: a text with more than this per token cannot fit.
        self.longest_token = 1 if tokenizer is None else max(map(len, tokenizer.get_vocab()))
        self.num_admitted = 0  # sequences of requests in progress, if their number is limited
        self.num_rejected = 0  # requests beyond that limit

    @property
    def max_model_len(self) -> int:
        return self.engine.max_model_len

    def admit(self, scope: Scope, num_sequences: int) -> None:
        """Count a request until it ends (see ``AdmissionMiddleware``).

        Args:
            scope: of the HTTP request.
            num_sequences: prompts, times samples of each.

        Raises:
            RequestError: a 503, if there would be more than ``--max-num-queued-reqs``.
        """
        most = self.args.max_num_queued_reqs
        if most is None:
            return
        if self.num_admitted + num_sequences > most:
            self.num_rejected += 1
            raise RequestError(
                f"at most {most} sequences may run and wait; {self.num_admitted} do, and this "
                f"request brings {num_sequences}; try again later, or another server",
                status=HTTPStatus.SERVICE_UNAVAILABLE,
                kind="Service Unavailable",
            )
        self.num_admitted += num_sequences
        scope[ADMITTED] = num_sequences

    def rejections(self) -> Counter:
        """Metric of the requests that ``admit`` has refused."""
        labels = {"model_name": self.models.model_name(), "reason": "max_num_queued_reqs"}
        return Counter("vllm:admission_rejections", labels, self.num_rejected)
