"""When is a sequence over? (vLLM: ``check_stop`` in vllm/v1/core/sched/utils.py)"""

from __future__ import annotations

from collections.abc import Callable

from minivllm.request import RequestStatus, Sequence


def check_stop(
    seq: Sequence, append_text: Callable[[Sequence], str | None], max_model_len: int
) -> tuple[RequestStatus, int | str | None] | None:
    """End-of-sequence token, stop token, stop string, length: the first that holds counts.

    Args:
        seq: has just got a token.
        append_text: called once for every token that is no end-of-sequence or stop token, with the
            sequence that got it; says which stop string its text now holds.
        max_model_len: the longest sequence, prompt and output.

    Returns:
        The status it ends with and its stop reason, or None if it goes on.
    """
    params, token_id = seq.request.sampling_params, seq.token_ids[-1]
    if token_id in seq.request.eos_token_ids and not params.ignore_eos:
        return RequestStatus.FINISHED_STOPPED, None
    if token_id in params.stop_reason_ids:
        return RequestStatus.FINISHED_STOPPED, token_id
    stop_string = append_text(seq)
    if stop_string is not None:
        return RequestStatus.FINISHED_STOPPED, stop_string
    if seq.num_output_tokens == params.max_tokens or seq.num_tokens >= max_model_len:
        return RequestStatus.FINISHED_LENGTH_CAPPED, None
    return None
