"""Incremental detokenization: tokens in one by one, text out in whole characters.

A token need not be whole text: a character of several bytes may take several tokens, and the same
token may look different behind another one. So each piece is what the text has grown by, seen from
a few tokens before. (vLLM: vllm/v1/engine/detokenizer.py, logprobs.py)
"""

from __future__ import annotations

from collections.abc import Callable

from tokenizers.decoders import DecodeStream

from minivllm.sampling_params import SamplingParams

_BROKEN = "\N{REPLACEMENT CHARACTER}"  # how a tokenizer shows bytes that are no character yet


def token_text(decode: Callable[[list[int]], str], before: list[int], token_id: int) -> str:
    """The text of one token behind others: "" for a part of a character, all of it for the last.

    So a token that ends inside a character has no text yet: what it begins with goes to the last
    one, too.

    Args:
        decode: token ids to text.
        before: the tokens before it; a character has at most four bytes, so no more than the last
            three matter.
        token_id: the token.
    """
    text = decode([token_id])
    if not text.endswith(_BROKEN):
        return text
    for n in range(1, min(3, len(before)) + 1):
        whole = decode([*before[-n:], token_id])
        if not whole.endswith(_BROKEN):
            return whole
    return ""


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
        while self._before and self._decode(self._before).endswith(_BROKEN):
            self._pending.insert(0, self._before[-1])
            self._before = self._before[:-1]
        if self._pending:
            self._begun = text[len(self._decode(self._before)) :]

    def finish(self) -> str:
        """The last characters; bytes that never became a character are left out."""
        return self.rest().rstrip(_BROKEN)

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

    def _release(self) -> None:
        self._before, self._pending, self._begun = self._pending, [], ""

    def _decode(self, token_ids: list[int]) -> str:
        raise NotImplementedError


class FastStream(TokenStream):
    """Incremental detokenizer with the DecodeStream of the tokenizers library.

    It keeps what is left at the end, so that has to be asked for, and it gives up where a later
    token changes what an earlier one looked like.

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
        piece = self._new(piece)
        self._release()
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
        if not piece or piece.endswith(_BROKEN):
            return ""
        self._release()
        return piece

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, **self._options)
