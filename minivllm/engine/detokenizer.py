"""Detokenizer: tokens become text as they come, and stop strings are found in it.

A token need not be whole text: a character of several bytes may take several tokens. Text is
released once it is whole. (vLLM: vllm/v1/engine/detokenizer.py)
"""

from __future__ import annotations

from minivllm.sampling_params import SamplingParams

_BROKEN = "\N{REPLACEMENT CHARACTER}"  # how a tokenizer shows bytes that are no character yet
_CONTEXT = 5  # prompt tokens decoded along, since some tokenizers treat a text's start differently


class Detokenizer:
    """The text of one growing sequence.

    Args:
        tokenizer: a Hugging Face tokenizer.
        prompt_token_ids: what comes before the text.
        params: stop strings, and what belongs into the text.
    """

    def __init__(self, tokenizer, prompt_token_ids: list[int], params: SamplingParams):
        self.tokenizer = tokenizer
        self.params = params
        self.text = ""
        self.stopped = False  # a stop string was found, and the text ends there
        self.finished = False
        # Decoded so far: ids[:_done]. Decoding starts again at _context each time, and what was
        # there before is cut off, so that every token is seen beside its neighbours.
        self._ids = list(prompt_token_ids[-_CONTEXT:])
        self._context, self._done = 0, len(self._ids)

    def append(self, token_id: int) -> str | None:
        """Add a token. Returns the stop string that the text now holds, after cutting it there."""
        old_length = len(self.text)
        self._ids.append(token_id)
        self._release(final=False)
        return self._find_stop(old_length)

    def finish(self) -> None:
        """Release what is left, whole or not, unless a stop string has ended the text."""
        if not self.stopped:
            self._release(final=True)
        self.finished = True

    def streamable(self, finished: bool) -> str:
        """The text that no later token can take back.

        Before the end, as many characters are held back as a stop string could still need.
        """
        stops = self.params.stop_strings
        if finished or not stops or self.params.include_stop_str_in_output:
            return self.text
        held_back = max(len(stop) for stop in stops) - 1
        return self.text[: max(0, len(self.text) - held_back)]

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=self.params.skip_special_tokens)

    def _release(self, final: bool) -> None:
        before = self._decode(self._ids[self._context : self._done])
        now = self._decode(self._ids[self._context :])
        if final or (len(now) > len(before) and not now.endswith(_BROKEN)):
            self.text += now[len(before) :]
            self._context, self._done = self._done, len(self._ids)

    def _find_stop(self, old_length: int) -> str | None:
        for stop in self.params.stop_strings:
            at = self.text.find(stop, max(0, old_length - len(stop) + 1))
            if at >= 0:
                end = at + len(stop) if self.params.include_stop_str_in_output else at
                self.text, self.stopped = self.text[:end], True
                return stop
        return None
