"""Progress bar of offline inference: finished requests and tokens per second, as in vLLM.

(vLLM: ``OfflineInferenceMixin``, vllm/entrypoints/common/offline.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tqdm.auto import tqdm

from minivllm.outputs import RequestOutput
from minivllm.utils.validation import InvalidParameter, check, is_number, shown


def check_use_tqdm(use_tqdm: Any) -> None:
    """Raise ``ValueError`` unless this is a truth value or a function that makes a bar."""
    simple = (bool, int, float, str, list, tuple, dict)
    off = use_tqdm is None or (isinstance(use_tqdm, simple) and not use_tqdm)
    ok = off or use_tqdm is True or callable(use_tqdm)
    check(ok, "use_tqdm", use_tqdm, "True, something empty, or a function that makes a bar")


def collect_outputs(
    outputs: Iterable[Any], total: int, use_tqdm: bool | Callable[..., tqdm] | None
) -> dict[str, Any]:
    """Collect finished outputs by request id, and move the bar on with each.

    Args:
        outputs: finished outputs, as they come; the bar is made before the first.
        total: their number.
        use_tqdm: see ``LLM.generate``.

    Raises:
        ValueError: if ``use_tqdm`` is a function that returns no progress bar.
    """
    if not (callable(use_tqdm) or use_tqdm):
        return {output.request_id: output for output in outputs}
    found: dict[str, Any] = {}
    bar = _make_bar(use_tqdm if callable(use_tqdm) else tqdm, total)
    tokens_in = 0
    tokens_out = 0
    try:
        for output in outputs:
            found[output.request_id] = output
            tokens_in += len(output.prompt_token_ids)
            if isinstance(output, RequestOutput):
                tokens_out += sum(len(c.token_ids) for c in output.outputs)
            seconds = bar.format_dict["elapsed"] or 1e-9
            bar.postfix = _speed(tokens_in / seconds, tokens_out / seconds)
            bar.update(1)
    finally:
        bar.close()
    return found


def _make_bar(make: Callable[..., tqdm], total: int) -> tqdm:
    bar = make(total=total, desc="Processed prompts", dynamic_ncols=True, postfix=_speed(0, 0))
    try:
        ok = callable(bar.update) and callable(bar.close) and is_number(bar.format_dict["elapsed"])
    except (AttributeError, KeyError, TypeError):
        ok = False
    if not ok:
        allowed = "with update, close and format_dict['elapsed'], as tqdm has them"
        raise InvalidParameter(
            f"use_tqdm must be a function that returns a progress bar, {allowed}; "
            f"it returned {shown(bar)}.",
            "use_tqdm",
        )
    return bar


def _speed(tokens_in: float, tokens_out: float) -> str:
    return f"est. speed input: {tokens_in:.2f} toks/s, output: {tokens_out:.2f} toks/s"
