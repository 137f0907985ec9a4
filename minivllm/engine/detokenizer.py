"""Detokenizer: the text of one growing sequence, and the stop strings in it.

(vLLM: vllm/v1/engine/detokenizer.py)
"""

from __future__ import annotations

from minivllm.engine.token_stream import FastStream, SlowStream
from minivllm.sampling_params import SamplingParams

_CONTEXT = 5  # prompt tokens decoded along, since some tokenizers treat a text's start differently


class Detokenizer:
    """The text of one growing sequence.

    Args:
        tokenizer: a Hugging Face tokenizer.
        prompt_token_ids: what comes before the text.
        params: stop strings, and what belongs into the text.
    """

    def __init__(self, tokenizer, prompt_token_ids: list[int], params: SamplingParams):
        kind = FastStream if getattr(tokenizer, "is_fast", False) else SlowStream
        self._stream = kind(tokenizer, list(prompt_token_ids[-_CONTEXT:]), params)
        self.params = params
        self.text = ""
        self.stopped = False  # a stop string was found, and the text ends there
        self.finished = False
        self._num_tokens = 0

    def append(self, token_id: int) -> str | None:
        """Add a token. Returns the stop string that the text now holds, after cutting it there."""
        old_length = len(self.text)
        self.text += self._stream.push(token_id)
        self._num_tokens += 1
        if 0 < self.params.min_tokens >= self._num_tokens:
            return None  # what has ended by now will not be found later
        return self._find_stop(old_length)

    def finish(self) -> None:
        """Release the characters that are left, unless a stop string has ended the text."""
        if not self.stopped:
            self.text += self._stream.finish()
        self.finished = True

    def streamable(self, finished: bool) -> str:
        """The part of the text that is final: no later token, and no stop string, can change it.

        Before the end, as many characters are held back as a stop string could still need.
        """
        stops = self.params.stop_strings
        if finished or not stops or self.params.include_stop_str_in_output:
            return self.text
        held_back = max(len(stop) for stop in stops) - 1
        return self.text[: max(0, len(self.text) - held_back)]

    def _find_stop(self, old_length: int) -> str | None:
        """The stop string that ends first, whatever tokens the text is split into.

        Only those that end in the new text: ``old_length`` is where that begins.
        """
        found = []
        for stop in self.params.stop_strings:
            at = self.text.find(stop, max(0, old_length - len(stop) + 1))
            if at >= 0:
                found.append((at + len(stop), at, stop))
        if not found:
            return None
        end, start, stop = min(found, key=lambda place: place[0])
        self.text = self.text[: end if self.params.include_stop_str_in_output else start]
        self.stopped = True
        return stop
