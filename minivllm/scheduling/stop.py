"""check_stop: does the last token end a sequence?

(vLLM: vllm/v1/core/sched/utils.py)
"""

from __future__ import annotations

from typing import Protocol

from minivllm.config import SchedulerConfig
from minivllm.request import RequestStatus, Sequence
from minivllm.scheduling.output import NO_TOKEN


def check_stop(seq: Sequence, max_model_len: int) -> tuple[RequestStatus, int | None] | None:
    """Check the last token: end of sequence, stop token, length; the first counts.

    Stop strings are found where text is made; see ``OutputProcessor``.

    Returns:
        The status it ends with and its stop reason, or None if it goes on.
    """
    request = seq.request
    params = request.sampling_params
    token_id = seq.token_ids[-1]
    num_tokens = len(seq.token_ids)
    if token_id in request.eos_token_ids and not params.ignore_eos:
        return RequestStatus.FINISHED_STOPPED, None
    if token_id in params.stop_reason_ids:
        return RequestStatus.FINISHED_STOPPED, token_id
    if num_tokens - seq.num_prompt_tokens == params.max_tokens or num_tokens >= max_model_len:
        return RequestStatus.FINISHED_LENGTH_CAPPED, None
    return None


class Update(Protocol):
    """Scheduler, as far as a sequence grows and ends by it."""

    config: SchedulerConfig

    def append(self, seq: Sequence, token_id: int) -> None: ...

    def finish(
        self, seq: Sequence, status: RequestStatus, stop_reason: int | str | None = None
    ) -> None: ...


def append_until_stop(update: Update, seq: Sequence, token_ids: list[int]) -> None:
    """Append a step's tokens to a sequence, up to the one that ends it.

    Args:
        update: the scheduler.
        seq: gets them.
        token_ids: sampled; those that do not count are taken out.
    """
    for i, token_id in enumerate(token_ids):
        no_token = token_id == NO_TOKEN
        if no_token or (seq.grammar is not None and not seq.grammar.accept_tokens([token_id])):
            del token_ids[i:]  # those that are left count
            update.finish(seq, RequestStatus.FINISHED_ERROR)
            return
        update.append(seq, token_id)
        end = check_stop(seq, update.config.max_model_len)
        if end is not None:
            del token_ids[i + 1 :]
            status, stop_reason = end
            update.finish(seq, status, stop_reason)
            return
