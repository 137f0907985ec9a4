"""Peers: other engines on the same work. Each imports its own library when it is made.

Options are named as ours are; a peer takes those that it has a counterpart for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from minivllm.lab.bench.workloads import BenchRequest, Round
from minivllm.math_utils import cdiv


class TransformersEngine:
    """transformers' ``generate``: padded batches, each as long as its longest answer.

    Samples of one prompt are rows of their own.
    """

    name = package = "transformers"
    num_cached_tokens = 0

    def __init__(self, directory: Path, dtype: str, max_num_seqs: int, **_options):
        self.model = _load(directory, dtype)
        self.batch_size = max_num_seqs

    def fresh(self, rounds: list[Round]) -> AbstractContextManager:
        return nullcontext()

    def run(self, rounds: list[Round]) -> list[list[int]]:
        answers = []
        for requests in rounds:
            rows = [request for request in requests for _ in range(request.n)]
            for start in range(0, len(rows), self.batch_size):
                answers += self._generate(rows[start : start + self.batch_size])
        return answers

    def _generate(self, batch: list[BenchRequest]) -> list[list[int]]:
        import torch
        from transformers import GenerationConfig

        width = max(len(request.prompt_token_ids) for request in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(batch):
            ids[row, width - len(request.prompt_token_ids) :] = torch.tensor(
                request.prompt_token_ids
            )
            mask[row, width - len(request.prompt_token_ids) :] = 1
        config = GenerationConfig(
            do_sample=batch[0].n > 1,
            max_new_tokens=max(request.max_tokens for request in batch),
            eos_token_id=None,
            pad_token_id=0,
        )
        with torch.inference_mode():
            out = self.model.generate(
                input_ids=ids.to(self.model.device),
                attention_mask=mask.to(self.model.device),
                generation_config=config,
            )
        answers = out[:, width:].tolist()
        return [a[: r.max_tokens] for a, r in zip(answers, batch, strict=True)]


class TransformersContinuousEngine:
    """transformers' continuous batching: requests join and leave a paged cache, step by step.

    The same manager as behind its ``generate_batch``, which has one output length for all.
    """

    name, package = "transformers-cb", "transformers"
    num_cached_tokens = 0

    def __init__(
        self,
        directory: Path,
        dtype: str,
        max_model_len: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        enable_prefix_caching: bool,
        gpu_memory_utilization: float,
        **_options,
    ):
        import torch
        from transformers import ContinuousBatchingConfig

        self.model = _load(directory, dtype)
        sizes = {"page_size": 32, "num_blocks": cdiv(max_num_seqs * max_model_len, 32)}
        if self.model.device.type == "cuda":  # a share of what is free; ours is one of the whole
            free, total = torch.cuda.mem_get_info()
            sizes = {"max_memory_percent": min(0.9, gpu_memory_utilization * total / free)}
        self._config = ContinuousBatchingConfig(
            **sizes,
            max_batch_tokens=max_num_batched_tokens,
            max_requests_per_batch=max_num_seqs,
            allow_block_sharing=enable_prefix_caching,
        )

    @contextmanager
    def fresh(self, rounds: list[Round]) -> Iterator[None]:
        """A new manager for each run, warmed up, since a manager cannot be reset."""
        from transformers import GenerationConfig

        sampling = any(request.n > 1 for requests in rounds for request in requests)
        with self.model.continuous_batching_context_manager(
            generation_config=GenerationConfig(do_sample=sampling, eos_token_id=-1),
            continuous_batching_config=self._config,
        ) as self._manager:
            yield

    def run(self, rounds: list[Round]) -> list[list[int]]:
        return [answer for requests in rounds for answer in self._answer(requests)]

    def _answer(self, requests: Round) -> list[list[int]]:
        ids = [
            self._manager.add_request(
                request.prompt_token_ids, max_new_tokens=request.max_tokens, eos_token_id=-1
            )
            for request in requests
            for _ in range(request.n)
        ]
        found: dict[str, list[int]] = {}
        while len(found) < len(ids):
            result = self._manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                if result.error is not None:
                    raise RuntimeError(result.error)
                found[result.request_id] = list(result.generated_tokens)
            elif result is None and not self._manager.is_running():
                raise RuntimeError("the thread that runs the steps has ended")
        return [found[request_id] for request_id in ids]


def _load(directory: Path, dtype: str):
    """A causal language model of transformers, on the GPU if there is one."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    )
    model.generation_config.eos_token_id = None  # else it falls back to config.json's
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


class OfflineEngine:
    """Runs what vLLM calls ``LLM``: its subclasses make ``llm`` and ``make_params``."""

    num_cached_tokens = 0

    @contextmanager
    def fresh(self, rounds: list[Round]) -> Iterator[None]:
        self.llm.reset_prefix_cache()
        yield

    def run(self, rounds: list[Round]) -> list[list[int]]:
        self.num_cached_tokens, answers = 0, []
        for requests in rounds:
            params = [self.make_params(**request.sampling_params) for request in requests]
            prompts = [{"prompt_token_ids": request.prompt_token_ids} for request in requests]
            outputs = self.llm.generate(prompts, params, use_tqdm=False)
            self.num_cached_tokens += sum(output.num_cached_tokens or 0 for output in outputs)
            answers += [list(o.token_ids) for output in outputs for o in output.outputs]
        return answers


class VllmEngine(OfflineEngine):
    """vLLM, its engine core in the same process as its ``LLM``; on a CPU eager."""

    name = package = "vllm"

    def __init__(
        self,
        directory: Path,
        dtype: str,
        max_model_len: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        enable_prefix_caching: bool,
        gpu_memory_utilization: float,
        **_options,
    ):
        for name, value in _VLLM_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        import torch
        import vllm

        self.make_params = vllm.SamplingParams
        self.llm = vllm.LLM(
            str(directory),
            dtype=dtype,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            enable_prefix_caching=enable_prefix_caching,
            gpu_memory_utilization=gpu_memory_utilization,
            skip_tokenizer_init=True,
            enforce_eager=not torch.cuda.is_available(),
            disable_log_stats=True,
        )


_VLLM_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
