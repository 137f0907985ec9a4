"""The progress bar of offline inference: finished requests, and tokens a second, as vLLM has it.

(vLLM: ``OfflineInferenceMixin``, vllm/entrypoints/common/offline.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tqdm.auto import tqdm

from minivllm.outputs import RequestOutput
from minivllm.validation import check


def check_use_tqdm(use_tqdm: Any) -> None:
    """Raise ValueError for what is neither a switch nor a function that makes a bar."""
    simple = (bool, int, float, str, list, tuple, dict)
    off = use_tqdm is None or (isinstance(use_tqdm, simple) and not use_tqdm)
    ok = off or use_tqdm is True or callable(use_tqdm)
    check(ok, "use_tqdm", use_tqdm, "True, something empty, or a function that makes a bar")


def collect(
    outputs: Iterable[RequestOutput], total: int, use_tqdm: bool | Callable[..., tqdm] | None
) -> dict[str, RequestOutput]:
    """Finished outputs by request id; the bar moves on with each of them.

    Args:
        outputs: finished ones.
        total: how many there will be.
        use_tqdm: see ``LLM.generate``.
    """
    found: dict[str, RequestOutput] = {}
    make_bar = use_tqdm if callable(use_tqdm) else tqdm
    tokens_in = tokens_out = 0
    with make_bar(
        total=total,
        desc="Processed prompts",
        dynamic_ncols=True,
        disable=not use_tqdm,
        postfix="est. speed input: 0.00 toks/s, output: 0.00 toks/s",
    ) as bar:
        for output in outputs:
            found[output.request_id] = output
            tokens_in += len(output.prompt_token_ids)
            tokens_out += sum(len(c.token_ids) for c in output.outputs)
            seconds = bar.format_dict["elapsed"] or 1e-9 if use_tqdm else 1
            bar.postfix = (
                f"est. speed input: {tokens_in / seconds:.2f} toks/s, "
                f"output: {tokens_out / seconds:.2f} toks/s"
            )
            bar.update(1)
    return found
