"""SamplingParams: sampling, stopping and output options of a request. The names are vLLM's.

(vLLM: vllm/sampling_params.py)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from minivllm.config import compat
from minivllm.config.compat import GuidedDecodingParams
from minivllm.config.structured_outputs import StructuredOutputsParams
from minivllm.logger import init_logger
from minivllm.utils.validation import check, is_int, is_number, is_only, is_text, known_names_only
from minivllm.utils.vllm_arguments import takes_vllm_defaults

logger = init_logger(__name__)

_SAMPLING_EPS = 1e-5  # below this temperature: greedy
MIN_TEMPERATURE = 1e-2  # a temperature between the two is raised to this one
MAX_N_SEQUENCES = 16384  # of one request (vLLM: VLLM_MAX_N_SEQUENCES)
_SMALLEST_FLOAT32 = 2.0**-126  # below, logits divided by it would be no numbers
_MAX_LENGTH_PENALTY = 10  # a length of millions to this power is a float, and so is its inverse
_FLAGS = (
    "ignore_eos", "detokenize", "skip_special_tokens", "spaces_between_special_tokens",
    "include_stop_str_in_output",
)  # fmt: skip


class RequestOutputKind(Enum):
    """Content of a request's outputs: all so far, only what is new, or nothing before the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@takes_vllm_defaults("SamplingParams")
@known_names_only
@dataclass(repr=False)
class SamplingParams:
    """Sampling parameters of one request.

    Args:
        n: completions per prompt, each with a seed of its own: ``seed + i`` for the i-th; at most
            16,384.
        presence_penalty: subtracted from the logit of every token of the output, in [-2, 2].
        frequency_penalty: the same, times how often the output has it, in [-2, 2].
        repetition_penalty: divides positive logits of tokens of prompt and output and multiplies
            negative ones; above 0 (as a float32), 1 does nothing.
        temperature: divides the logits; 0 (anything below 1e-5) is greedy.
        top_p: keep the smallest set of best tokens whose probabilities reach this sum, in (0, 1].
        top_k: keep this many best tokens; 0 or -1 keeps all.
        min_p: keep tokens with at least this share of the best one's probability, in [0, 1].
        seed: makes the draws of this request its own, whatever shares its batch: seed (modulo
            2**64) and position of a token give the random number that draws it.
        stop: strings that end the text; they are not part of it.
        stop_token_ids: tokens that end the sequence.
        ignore_eos: go on after the end-of-sequence token.
        max_tokens: the longest output, in tokens; None is as long as the model allows.
        min_tokens: nothing can end the output before it has this many tokens; a stop string may
            begin among them and end after.
        logprobs: report each token's logprob, and those of this many best tokens; -1 is all.
        prompt_logprobs: the same for the prompt's tokens, which are then all computed.
        detokenize: False returns token ids only.
        skip_special_tokens: leave special tokens out of the text.
        spaces_between_special_tokens: False puts no space between special tokens in the text.
        include_stop_str_in_output: leave the string or token that stopped it in the text.
        output_kind: what a stream's outputs hold; ``LLM.generate`` returns the last only.
        logit_bias: added to the logits of these tokens, each in [-100, 100].
        allowed_token_ids: only these tokens can be sampled.
        bad_words: the output never gets to the last token of one of these words.
        logits_processors: functions ``f(output_ids, logits)`` or ``f(prompt_ids, output_ids,
            logits)`` of one row that return its new logits, before all else. (As in 0.6.6.)
        structured_outputs: what the text must look like; see ``StructuredOutputsParams``.
        guided_decoding: the same in 0.6.6's words, a ``GuidedDecodingParams``.
        extra_args: ``kv_transfer_params``, what is asked of a KV connector; nothing else is read.
        truncate_prompt_tokens: keep only this many last tokens of the prompt; -1 is as many as
            the model takes.
        skip_reading_prefix_cache: compute the whole prompt; None does so for prompt_logprobs only.

    Raises:
        ValueError: for an unknown name or a value outside its range, naming both.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    logits_processors: list[Callable] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    guided_decoding: GuidedDecodingParams | None = None
    truncate_prompt_tokens: int | None = None
    skip_reading_prefix_cache: bool | None = None
    extra_args: dict | None = None

    # known, so that a refusal can say why; see SAMPLING_DEFAULTS_ONLY
    best_of: int | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    stream_interval: int | None = None
    thinking_token_budget: int | None = None
    repetition_detection: Any = None

    stop_strings: tuple[str, ...] = field(init=False, repr=False)
    # What a model's tokenizer makes of it: filled in by the processor, in the request's own copy.
    all_stop_token_ids: frozenset[int] = field(init=False, repr=False)  # EOS among them
    # those of them that are a stop_reason: all but the tokenizer's own EOS
    stop_reason_ids: frozenset[int] = field(init=False, repr=False)
    bad_words_token_ids: list[list[int]] = field(init=False, repr=False)

    def __post_init__(self):
        self.seed = None if is_only(self.seed, -1) else self.seed  # as in vLLM
        self._check_numbers()
        self._check_tokens_and_text()
        self.structured_outputs = compat.structured_outputs(self)
        self.guided_decoding = None
        compat.check_defaults_only(self, compat.SAMPLING_DEFAULTS_ONLY)
        self._check_extra_args()
        if _SAMPLING_EPS <= self.temperature < MIN_TEMPERATURE:
            logger.warning(
                "temperature %s is so small that logits could overflow; %s is used instead.",
                self.temperature,
                MIN_TEMPERATURE,
            )
            self.temperature = MIN_TEMPERATURE
        ok = self.n == 1 or not self.greedy
        check(ok, "n", self.n, "1 for greedy sampling, which would give n times the same")

    def _check_extra_args(self) -> None:
        extra = self.extra_args
        ok = extra is None or (isinstance(extra, dict) and set(extra) <= {"kv_transfer_params"})
        check(ok, "extra_args", extra, "None, or a dict with kv_transfer_params alone")
        params = self.kv_transfer_params
        ok = params is None or isinstance(params, dict)
        check(ok, "extra_args['kv_transfer_params']", params, "an object")

    @property
    def kv_transfer_params(self) -> dict[str, Any] | None:
        """Parameters for a KV connector; None: it is asked for nothing."""
        return (self.extra_args or {}).get("kv_transfer_params")

    def _check_numbers(self) -> None:
        def number(name: str, ok: Callable[[float], bool], allowed: str) -> None:
            value = getattr(self, name)
            check(is_number(value) and ok(value), name, value, f"a number {allowed}")

        def integer(name: str, low: int, allowed: str, optional: bool = False) -> None:
            value = getattr(self, name)
            ok = is_int(value, low) or (optional and value is None)
            check(ok, name, value, f"an integer of at least {allowed}")

        ok = is_int(self.n, 1) and self.n <= MAX_N_SEQUENCES
        check(ok, "n", self.n, f"an integer from 1 to {MAX_N_SEQUENCES}")
        number("presence_penalty", lambda x: -2 <= x <= 2, "from -2 to 2")
        number("frequency_penalty", lambda x: -2 <= x <= 2, "from -2 to 2")
        number(
            "repetition_penalty",
            lambda x: _SMALLEST_FLOAT32 <= x <= 1 / _SMALLEST_FLOAT32,
            "above 0 (as a float32, and finite)",
        )
        number("temperature", lambda x: x >= 0, "of at least 0")
        number("top_p", lambda x: 0 < x <= 1, "above 0 and at most 1")
        integer("top_k", -1, "1, or 0 or -1 to keep all")
        number("min_p", lambda x: 0 <= x <= 1, "from 0 to 1")
        integer("seed", 0, "0, or None or -1 for no seed", optional=True)
        integer("max_tokens", 1, "1, or None for no limit", optional=True)
        integer("min_tokens", 0, "0")
        ok = self.max_tokens is None or self.min_tokens <= self.max_tokens
        check(ok, "min_tokens", self.min_tokens, f"at most max_tokens={self.max_tokens}")
        integer("logprobs", -1, "0, or -1 for all, or None", optional=True)
        integer("prompt_logprobs", -1, "0, or -1 for all, or None", optional=True)
        integer("truncate_prompt_tokens", -1, "1, or -1, or None", optional=True)
        ok = self.truncate_prompt_tokens != 0
        check(ok, "truncate_prompt_tokens", 0, "an integer of at least 1, or -1, or None")

    def _check_tokens_and_text(self) -> None:
        def a_list(value: Any, ok: Callable[[Any], object]) -> bool:
            if value is None:
                return True
            return isinstance(value, (list, tuple)) and all(ok(item) for item in value)

        for name in _FLAGS:
            check(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")
        skip = self.skip_reading_prefix_cache
        ok = skip is None or isinstance(skip, bool)
        check(ok, "skip_reading_prefix_cache", skip, "True, False or None")
        ok = skip is not False or self.prompt_logprobs is None
        check(ok, "skip_reading_prefix_cache", skip, "True or None with prompt_logprobs")
        ok = isinstance(self.output_kind, RequestOutputKind)
        check(ok, "output_kind", self.output_kind, "a RequestOutputKind")
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        ok = a_list(stop, lambda s: isinstance(s, str) and s)
        check(ok, "stop", self.stop, "a non-empty string or a list of them")
        self.stop_strings = tuple(stop or ())
        ok = self.detokenize or not self.stop_strings
        check(ok, "stop", self.stop, "empty when detokenize=False, since no text is made")
        ids = self.stop_token_ids
        check(a_list(ids, lambda i: is_int(i, 0)), "stop_token_ids", ids, "a list of token ids")
        self.all_stop_token_ids = self.stop_reason_ids = frozenset(ids or ())
        ids = self.allowed_token_ids
        ok = a_list(ids, lambda i: is_int(i, 0)) and (ids is None or len(ids) > 0)
        check(ok, "allowed_token_ids", ids, "a list of at least one token id, or None")
        ok = a_list(self.bad_words, lambda word: is_text(word) and word.strip())
        allowed = "a list of non-empty strings without lone surrogates"
        check(ok, "bad_words", self.bad_words, allowed)
        self.bad_words_token_ids = []
        ok = a_list(self.logits_processors, callable)
        check(ok, "logits_processors", self.logits_processors, "a list of functions")
        bias = self.logit_bias
        ok = bias is None or (isinstance(bias, dict) and all(is_int(i, 0) for i in bias))
        check(ok, "logit_bias", bias, "a dict from token ids to numbers")
        for value in (bias or {}).values():
            ok = is_number(value) and -100 <= value <= 100
            check(ok, "every value of logit_bias", value, "a number from -100 to 100")

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        different = (
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if f.init and getattr(self, f.name) != f.default
        )
        return f"SamplingParams({', '.join(different)})"

    @property
    def greedy(self) -> bool:
        """True if the best token is always taken."""
        return self.temperature < _SAMPLING_EPS


@takes_vllm_defaults("BeamSearchParams")
@known_names_only
@dataclass
class BeamSearchParams:
    """Parameters of a beam search for the most likely continuations.

    Args:
        beam_width: how many continuations are followed, and returned, the best first.
        max_tokens: the longest output, in tokens.
        ignore_eos: go on after the end-of-sequence token.
        temperature: 0; there is nothing to draw.
        length_penalty: a continuation's score is its log probability divided by its length (with
            the prompt) to this power, from -10 to 10; above 0 favours longer ones.
        include_stop_str_in_output: leave the end-of-sequence token in the text.
        skip_special_tokens: leave special tokens out of the text.

    Raises:
        ValueError: for an unknown name or a value outside its range, naming both.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    # Only the tokenizer's own end-of-sequence token completes a beam: the server's, as vLLM's.
    _ends_at_own_eos: bool = field(default=False, init=False)

    def __post_init__(self):
        for name in ("beam_width", "max_tokens"):
            ok = is_int(getattr(self, name), 1)
            check(ok, name, getattr(self, name), "an integer of at least 1")
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            check(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")
        ok = is_number(self.temperature) and self.temperature == 0
        check(ok, "temperature", self.temperature, "0 for beams, since nothing is drawn")
        ok = is_number(self.length_penalty) and abs(self.length_penalty) <= _MAX_LENGTH_PENALTY
        allowed = f"a number from -{_MAX_LENGTH_PENALTY} to {_MAX_LENGTH_PENALTY}"
        check(ok, "length_penalty", self.length_penalty, allowed)

    def for_one_beam(self) -> SamplingParams:
        """Sampling parameters of one beam: enough logprobs that ``beam_width`` beams go on."""
        return SamplingParams(
            temperature=0,
            logprobs=2 * self.beam_width,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            include_stop_str_in_output=self.include_stop_str_in_output,
        )
