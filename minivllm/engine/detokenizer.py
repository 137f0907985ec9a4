"""Detokenizer: the text of one growing sequence, made token by token, and the stop strings in it.

A token need not be whole text: a character of several bytes may take several tokens, and the same
token may look different behind another one. So each piece is what the text has grown by, seen from
a few tokens before. (vLLM: vllm/v1/engine/detokenizer.py)
"""

from __future__ import annotations

from tokenizers.decoders import DecodeStream

from minivllm.sampling_params import SamplingParams

_CONTEXT = 5  # prompt tokens decoded along, since some tokenizers treat a text's start differently
BROKEN = "\N{REPLACEMENT CHARACTER}"  # how a tokenizer shows bytes that are no character yet


class TokenStream:
    """Incremental detokenizer of one sequence: where the text begins, and how it ends.

    A prompt may end inside a character. Then its last tokens are kept apart as pending, and what
    completes the character shows all of it.
    """

    def __init__(self, before: list[int]):
        self._before = before  # ids of the last piece
        self._pending: list[int] = []  # ids since then
        self._begun = ""  # how the prompt's pending tokens look: not ours to show
        text = self._decode(before)
        while self._before and self._decode(self._before).endswith(BROKEN):
            self._pending.insert(0, self._before[-1])
            self._before = self._before[:-1]
        if self._pending:
            self._begun = text[len(self._decode(self._before)) :]

    def finish(self) -> str:
        """The last characters; bytes that never became a character are left out."""
        return self.rest().rstrip(BROKEN)

    def rest(self) -> str:
        """The text that is held back: perhaps a part of a character."""
        shown = self._decode(self._before)
        return self._new(self._decode(self._before + self._pending)[len(shown) :])

    def _new(self, piece: str) -> str:
        """New text, without the replacement character of a prompt that ends inside a character."""
        same = 0
        while piece[same : same + 1] and piece[same] == self._begun[same : same + 1]:
            same += 1
        return piece[same:]

    def _decode(self, token_ids: list[int]) -> str:
        raise NotImplementedError


class FastStream(TokenStream):
    """Incremental detokenizer with the DecodeStream of the tokenizers library.

    The library keeps the rest at the end, so that has to be asked for, and it gives up where a
    later token changes the text of an earlier one.

    Args:
        tokenizer: a fast Hugging Face tokenizer.
        before: a few token ids that come before the text.
        params: whether special tokens are text, and whether there are spaces between them.
    """

    def __init__(self, tokenizer, before: list[int], params: SamplingParams):
        self._tokenizer = tokenizer.backend_tokenizer
        self._skip_special = params.skip_special_tokens
        super().__init__(before)
        self._decoder = DecodeStream(self._before, self._skip_special)
        for token_id in self._pending:
            self._decoder.step(self._tokenizer, token_id)
        self._special: dict[int, str] = {}  # those that get no space between them
        if not (params.skip_special_tokens or params.spaces_between_special_tokens):
            added = self._tokenizer.get_added_tokens_decoder()
            self._special = {i: token.content for i, token in added.items() if token.special}

    def push(self, token_id: int) -> str:
        """Add a token. Returns the text that it completes; often none."""
        self._pending.append(token_id)
        try:
            piece = self._decoder.step(self._tokenizer, token_id)
        except Exception as error:  # the library has no narrower class for it
            if "Invalid prefix" not in str(error):
                raise
            piece = self.rest() or None
            self._decoder = DecodeStream(self._pending, self._skip_special)
        if token_id in self._special and self._before[-1:] and self._before[-1] in self._special:
            piece = self._special[token_id]
        if piece is None:
            return ""
        if self._begun:
            piece = self._new(piece)
        self._before = self._pending
        self._pending = []
        self._begun = ""
        return piece

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, self._skip_special)


class SlowStream(TokenStream):
    """Incremental detokenizer for any tokenizer that has ``decode``.

    Args:
        tokenizer: a Hugging Face tokenizer in Python.
        before, params: as for ``FastStream``.
    """

    def __init__(self, tokenizer, before: list[int], params: SamplingParams):
        self._tokenizer = tokenizer
        self._options = {"skip_special_tokens": params.skip_special_tokens}
        if not params.spaces_between_special_tokens:
            self._options["spaces_between_special_tokens"] = False
        super().__init__(before)

    def push(self, token_id: int) -> str:
        self._pending.append(token_id)
        piece = self.rest()
        if not piece or piece.endswith(BROKEN):
            return ""
        self._before = self._pending
        self._pending = []
        self._begun = ""
        return piece

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, **self._options)


class Detokenizer:
    """The text of one growing sequence.

    Args:
        tokenizer: a Hugging Face tokenizer.
        prompt_token_ids: the tokens before the text.
        params: stop strings, and whether special tokens are text.
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
        if not self.params.stop_strings or 0 < self.params.min_tokens >= self._num_tokens:
            return None  # a stop string that has ended by now is not found later
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
