"""check_stop: does the last token end a sequence?

(vLLM: vllm/v1/core/sched/utils.py)
"""

from __future__ import annotations

from minivllm.request import RequestStatus, Sequence


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
