"""Our engine and its peers behind one method, so that they can be run in turn on the same work."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from minivllm.bench.workloads import BenchRequest, Round
from minivllm.entrypoints.llm import LLM
from minivllm.sampling_params import SamplingParams
from minivllm.validation import check


class Engine(Protocol):
    """Loads a model once, then answers rounds of requests.

    Everybody decodes greedily (samples of one prompt at temperature 1), ignores the
    end-of-sequence token and makes no text.
    """

    name: str

    def run(self, rounds: list[Round]) -> list[list[int]]:
        """All answers' token ids, samples side by side, in the order of the requests.

        Nothing of an earlier run is remembered: a prefix cache is emptied first.
        """


class MinivllmEngine:
    """Ours."""

    name = "minivllm"

    def __init__(self, directory: Path, dtype: str, max_model_len: int, **options):
        self.llm = LLM(
            str(directory),
            dtype=dtype,
            max_model_len=max_model_len,
            skip_tokenizer_init=True,
            **options,
        )
        self.num_cached_tokens = 0  # of the last run's prompts

    def run(self, rounds: list[Round]) -> list[list[int]]:
        self.llm.reset_prefix_cache()
        self.num_cached_tokens, answers = 0, []
        for requests in rounds:
            params = [SamplingParams(**_settings(request)) for request in requests]
            prompts = [request.prompt_token_ids for request in requests]
            outputs = self.llm.generate(prompts, params, use_tqdm=False)
            self.num_cached_tokens += sum(output.num_cached_tokens for output in outputs)
            answers += [o.token_ids for output in outputs for o in output.outputs]
        return answers


def _settings(request: BenchRequest) -> dict:
    return {
        "n": request.n,
        "temperature": 0.0 if request.n == 1 else 1.0,
        "max_tokens": request.max_tokens,
        "ignore_eos": True,
        "detokenize": False,
    }


class TransformersEngine:
    """transformers' ``generate``: padded batches, each as long as its longest answer.

    Samples of one prompt are rows of their own.
    """

    name = "transformers"

    def __init__(
        self, directory: Path, dtype: str, max_model_len: int, max_num_seqs: int, **_options
    ):
        import torch
        from transformers import AutoModelForCausalLM

        self.torch, self.batch_size = torch, max_num_seqs
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
        self.model.to(self.device).eval()
        self.model.generation_config.eos_token_id = None  # else it falls back to config.json's

    def run(self, rounds: list[Round]) -> list[list[int]]:
        answers = []
        for requests in rounds:
            rows = [request for request in requests for _ in range(request.n)]
            for start in range(0, len(rows), self.batch_size):
                answers += self._generate(rows[start : start + self.batch_size])
        return answers

    def _generate(self, batch: list[BenchRequest]) -> list[list[int]]:
        from transformers import GenerationConfig

        width = max(len(request.prompt_token_ids) for request in batch)
        ids = self.torch.zeros(len(batch), width, dtype=self.torch.long)
        mask = self.torch.zeros_like(ids)
        for row, request in enumerate(batch):
            ids[row, width - len(request.prompt_token_ids) :] = self.torch.tensor(
                request.prompt_token_ids
            )
            mask[row, width - len(request.prompt_token_ids) :] = 1
        config = GenerationConfig(
            do_sample=batch[0].n > 1,
            max_new_tokens=max(request.max_tokens for request in batch),
            eos_token_id=None,
            pad_token_id=0,
        )
        with self.torch.inference_mode():
            out = self.model.generate(
                input_ids=ids.to(self.device),
                attention_mask=mask.to(self.device),
                generation_config=config,
            )
        answers = out[:, width:].tolist()
        return [a[: r.max_tokens] for a, r in zip(answers, batch, strict=True)]


class VllmEngine:
    """vLLM, in this process and eager."""

    name = "vllm"

    def __init__(
        self,
        directory: Path,
        dtype: str,
        max_model_len: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        enable_prefix_caching: bool,
        **_options,
    ):
        for name, value in _VLLM_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        import vllm

        self.make_params = vllm.SamplingParams
        self.llm = vllm.LLM(
            str(directory),
            dtype=dtype,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            enable_prefix_caching=enable_prefix_caching,
            skip_tokenizer_init=True,
            enforce_eager=True,
            disable_log_stats=True,
        )

    def run(self, rounds: list[Round]) -> list[list[int]]:
        self.llm.reset_prefix_cache()
        answers = []
        for requests in rounds:
            params = [self.make_params(**_settings(request)) for request in requests]
            prompts = [{"prompt_token_ids": request.prompt_token_ids} for request in requests]
            outputs = self.llm.generate(prompts, params, use_tqdm=False)
            answers += [list(o.token_ids) for output in outputs for o in output.outputs]
        return answers


_VLLM_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
PEERS = {"transformers": TransformersEngine, "vllm": VllmEngine}


def peers_asked_for(against: list[str]) -> list[type]:
    """The classes of these peers.

    Raises:
        ValueError: for a name that is none, or that is not installed.
    """
    for name in against:
        names = ", ".join(map(repr, PEERS))
        check(name in PEERS, "against", name, f"one of {names}")
        check(find_spec(name) is not None, "against", name, "installed in this environment")
    return [PEERS[name] for name in against]
