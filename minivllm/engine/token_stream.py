"""Tokens come one by one, text goes out in pieces of whole characters.

A token need not be whole text: a character of several bytes may take several tokens, and the same
token may look different behind another one. So each piece is what the text has grown by, seen from
a few tokens before. (vLLM: vllm/v1/engine/detokenizer.py)
"""

from __future__ import annotations

from tokenizers.decoders import DecodeStream

from minivllm.sampling_params import SamplingParams

_BROKEN = "\N{REPLACEMENT CHARACTER}"  # how a tokenizer shows bytes that are no character yet


class FastStream:
    """The stream decoder of the tokenizers library, and what it leaves out.

    It keeps bytes that never become a character, so the end has to be asked for, and it gives up
    where a later token changes what an earlier one looked like.

    Args:
        tokenizer: a fast Hugging Face tokenizer.
        before: a few token ids that come before the text.
        params: whether special tokens are text, and whether there are spaces between them.
    """

    def __init__(self, tokenizer, before: list[int], params: SamplingParams):
        self._tokenizer = tokenizer.backend_tokenizer
        self._skip_special = params.skip_special_tokens
        self._decoder = DecodeStream(before, self._skip_special)
        self._before, self._pending = before, []  # ids of the last piece, ids since then
        self._special: dict[int, str] = {}  # those that get no space between them
        if not (params.skip_special_tokens or params.spaces_between_special_tokens):
            added = self._tokenizer.get_added_tokens_decoder()
            self._special = {i: token.content for i, token in added.items() if token.special}

    def push(self, token_id: int) -> str:
        """The text that this token makes whole; often none."""
        self._pending.append(token_id)
        try:
            piece = self._decoder.step(self._tokenizer, token_id)
        except Exception as error:  # the library has no narrower class for it
            if "Invalid prefix" not in str(error):
                raise
            piece = self.rest()
            self._decoder = DecodeStream(self._pending, self._skip_special)
        if token_id in self._special and self._before[-1:] and self._before[-1] in self._special:
            piece = self._special[token_id]
        if piece is None:
            return ""
        self._before, self._pending = self._pending, []
        return piece

    def rest(self) -> str:
        """What is left at the end, whole or not."""
        shown = self._tokenizer.decode(self._before, self._skip_special)
        return self._tokenizer.decode(self._before + self._pending, self._skip_special)[
            len(shown) :
        ]


class SlowStream:
    """The same for any tokenizer that can ``decode``.

    Args:
        tokenizer: a Hugging Face tokenizer in Python.
        before, params: as for ``FastStream``.
    """

    def __init__(self, tokenizer, before: list[int], params: SamplingParams):
        self._tokenizer = tokenizer
        self._options = {"skip_special_tokens": params.skip_special_tokens}
        if not params.spaces_between_special_tokens:
            self._options["spaces_between_special_tokens"] = False
        self._before, self._pending = before, []

    def push(self, token_id: int) -> str:
        self._pending.append(token_id)
        piece = self.rest()
        if not piece or piece.endswith(_BROKEN):
            return ""
        self._before, self._pending = self._pending, []
        return piece

    def rest(self) -> str:
        decode, options = self._tokenizer.decode, self._options
        shown = decode(self._before, **options)
        return decode(self._before + self._pending, **options)[len(shown) :]
