"""SamplingParams: how the next token is chosen and when a sequence ends. The names are vLLM's."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from minivllm.validation import check, is_int, is_number, known_names_only

_SAMPLING_EPS = 1e-5  # below this temperature: greedy
_MIN_TEMPERATURE = 1e-2  # a temperature between the two is raised to this one
_FLAGS = ("include_stop_str_in_output", "ignore_eos", "detokenize", "skip_special_tokens")
# Fields of vLLM's of which we have the default only.
_ONLY_THE_DEFAULT = {
    "min_p": 0.0,
    "min_tokens": 0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "prompt_logprobs": None,
    "bad_words": None,
    "logit_bias": None,
    "allowed_token_ids": None,
    "spaces_between_special_tokens": True,
    "truncate_prompt_tokens": None,
}


@known_names_only
@dataclass(repr=False)
class SamplingParams:
    """What one request asks of the sampler and of the end of its text.

    Args:
        n: completions per prompt, each with a generator of its own: ``seed + i`` for the i-th.
        temperature: divides the logits; 0 (anything below 1e-5) is greedy.
        top_p: keep the smallest set of best tokens whose probabilities reach this sum, in (0, 1].
        top_k: keep this many best tokens; 0 or -1 keeps all.
        seed: makes the draws of this request its own, whatever shares its batch.
        stop: strings that end the text; they are not part of it.
        stop_token_ids: tokens that end the sequence.
        include_stop_str_in_output: leave the string or token that stopped it in the text.
        ignore_eos: go on after the end-of-sequence token.
        max_tokens: the longest output, in tokens.
        logprobs: report each token's logprob, and those of this many best tokens; -1 is all.
        detokenize: False returns token ids only.
        skip_special_tokens: leave special tokens out of the text.

    Raises:
        ValueError: for an unknown name or a value outside its range, naming both.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True

    # accepted so that vLLM scripts run; see _ONLY_THE_DEFAULT
    min_p: float = 0.0
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    prompt_logprobs: int | None = None
    bad_words: list[str] | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None

    stop_strings: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self):
        check(is_int(self.n, 1), "n", self.n, "an integer of at least 1")
        t = self.temperature
        check(is_number(t) and t >= 0, "temperature", t, "a number of at least 0")
        ok = is_number(self.top_p) and 0 < self.top_p <= 1
        check(ok, "top_p", self.top_p, "a number above 0 and at most 1")
        ok = is_int(self.top_k, -1)
        check(ok, "top_k", self.top_k, "an integer of at least 1, or 0 or -1 to keep all")
        self.seed = None if self.seed == -1 else self.seed  # as in vLLM
        ok = self.seed is None or is_int(self.seed, 0)
        check(ok, "seed", self.seed, "an integer of at least 0, or None or -1 for no seed")
        ok = self.max_tokens is None or is_int(self.max_tokens, 1)
        check(ok, "max_tokens", self.max_tokens, "an integer of at least 1, or None for no limit")
        ok = self.logprobs is None or is_int(self.logprobs, -1)
        check(ok, "logprobs", self.logprobs, "an integer of at least 0, -1 for all, or None")
        for name in _FLAGS:
            check(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")
        for name, default in _ONLY_THE_DEFAULT.items():
            ok = getattr(self, name) == default
            check(ok, name, getattr(self, name), f"{default!r} in minivllm (it is not built yet)")
        self.stop_strings = self._stop_strings()
        ids = [] if self.stop_token_ids is None else self.stop_token_ids
        ok = isinstance(ids, (list, tuple)) and all(is_int(i, 0) for i in ids)
        check(ok, "stop_token_ids", self.stop_token_ids, "a list of token ids")
        ok = self.detokenize or not self.stop_strings
        check(ok, "stop", self.stop, "empty when detokenize=False, since no text is made")
        if _SAMPLING_EPS <= self.temperature < _MIN_TEMPERATURE:
            from minivllm.logger import init_logger

            init_logger(__name__).warning(
                "temperature %s is so small that logits could overflow; %s is used instead.",
                self.temperature,
                _MIN_TEMPERATURE,
            )
            self.temperature = _MIN_TEMPERATURE
        ok = self.n == 1 or not self.greedy
        check(ok, "n", self.n, "1 for greedy sampling, which would give n times the same")

    def _stop_strings(self) -> tuple[str, ...]:
        stop = [] if self.stop is None else [self.stop] if isinstance(self.stop, str) else self.stop
        ok = isinstance(stop, (list, tuple)) and all(isinstance(s, str) and s for s in stop)
        check(ok, "stop", self.stop, "a non-empty string or a list of them")
        return tuple(stop)

    def __repr__(self) -> str:
        """Only what differs from the defaults."""
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


@known_names_only
@dataclass
class BeamSearchParams:
    """Look for the likeliest continuations instead of drawing them.

    Args:
        beam_width: how many continuations are followed, and returned, the best first.
        max_tokens: the longest output, in tokens.
        ignore_eos: go on after the end-of-sequence token.
        temperature: 0; there is nothing to draw.
        length_penalty: a continuation's score is its log probability divided by its length (with
            the prompt) to this power; above 0 favours longer ones.
        include_stop_str_in_output: leave the end-of-sequence token in the text.

    Raises:
        ValueError: for an unknown name or a value outside its range, naming both.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self):
        for name in ("beam_width", "max_tokens"):
            ok = is_int(getattr(self, name), 1)
            check(ok, name, getattr(self, name), "an integer of at least 1")
        for name in ("ignore_eos", "include_stop_str_in_output"):
            check(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")
        ok = is_number(self.temperature) and self.temperature == 0
        check(ok, "temperature", self.temperature, "0 for beams, since nothing is drawn")
        check(is_number(self.length_penalty), "length_penalty", self.length_penalty, "a number")

    def for_one_beam(self) -> SamplingParams:
        """What each beam asks of the sampler: enough candidates that ``beam_width`` go on."""
        return SamplingParams(
            temperature=0,
            logprobs=2 * self.beam_width,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            include_stop_str_in_output=self.include_stop_str_in_output,
        )
