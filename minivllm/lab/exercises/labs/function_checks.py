"""What the labs that are functions are held to: vLLM's own steps, or the plain formula.

Each check gets the function and a seed, which draws the inputs; seed 0 stands for vLLM's own
recordings where there are some. It raises ``Fault`` for the first thing that is wrong. Torch and
Triton are imported only when somebody is graded: the rest of this room runs without them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random
from types import FunctionType
from typing import Any

from minivllm.lab.exercises.answers import is_whole
from minivllm.lab.exercises.labs.drawn_steps import drawn_steps
from minivllm.lab.exercises.labs.recorded_steps import recorded_steps
from minivllm.lab.exercises.labs.run import Fault, describe_error


class WrongEntry(Fault):
    """One entry of an answer is wrong; the right value is told on a second miss."""

    def __init__(self, which: str, value: str):
        super().__init__(which)
        self.value = value


def call(function: Callable, *args, **kwargs) -> Any:
    """What the reader's function returns; whatever it raises becomes a Fault."""
    try:
        return function(*args, **kwargs)
    except NotImplementedError:
        raise
    except Exception as error:  # there is no end to what a function may do
        if "NotImplementedError" in repr(error):  # Triton's interpreter wraps it
            raise NotImplementedError from error
        raise Fault(describe_error(error)) from error


# -- plans and caps: vLLM's recordings ---------------------------------------------------------


def check_schedule(function: Callable, seed: int) -> str:
    recorded = recorded_steps(
        enable_prefix_caching=False, enable_chunked_prefill=True, long_prefill_token_threshold=0
    )
    steps = 0
    for step in drawn_steps(seed, with_threshold=False) if seed else recorded:
        limits = {
            "token_budget": step.config["max_num_batched_tokens"],
            "max_num_seqs": step.config["max_num_seqs"],
            "num_free_blocks": step.num_free_blocks,
            "block_size": step.config["block_size"],
        }
        got = call(function, dict(step.running), dict(step.waiting), **limits)
        if not isinstance(got, dict) or not all(map(is_whole, got.values())):
            raise Fault("return a dict of whole numbers, tokens by name")
        _compare_plans(f"{step.name}, {limits}", got, step.plan)
        steps += 1
    if seed:
        return f"equal to the engine's own plan in {steps} drawn steps"
    return f"equal to vLLM's own plan in {steps} recorded steps"


def _compare_plans(where: str, got: dict, right: dict) -> None:
    for name, num_tokens in right.items():
        if got.get(name) != num_tokens:
            what = (
                "gets tokens in this step" if name not in got else "gets another number of tokens"
            )
            raise WrongEntry(f"{where}: {name} {what}", f"{name}: {num_tokens}")
    for name in got:
        if name not in right:
            raise WrongEntry(f"{where}: {name} gets no tokens in this step", f"{right}")
    if list(got) != list(right):
        raise WrongEntry(f"{where}: the order is another one", f"{list(right)}")


def check_cap(function: Callable, seed: int) -> str:
    recorded, calls = recorded_steps(long_prefill_token_threshold=lambda value: value > 0), 0
    for step in drawn_steps(seed, with_threshold=True) if seed else recorded:
        budget = step.config["max_num_batched_tokens"]
        given = {
            "long_prefill_token_threshold": step.config["long_prefill_token_threshold"],
            "num_requests": len(step.running) + len(step.waiting),
        }
        for name, right in step.plan.items():
            calls += 1
            _check_number(function, step.missing[name], budget, given, right)
            budget -= right
    alone = {"long_prefill_token_threshold": 4, "num_requests": 1}
    _check_number(function, 9, 20, alone, 9)
    _check_number(function, 9, 20, {"long_prefill_token_threshold": 0, "num_requests": 5}, 9)
    who = "the engine" if seed else "vLLM"
    return f"equal to what {who} scheduled {calls} times under a threshold"


def _check_number(function: Callable, num_new: int, budget: int, given: dict, right: int) -> None:
    got = call(function, num_new, budget, **given)
    if got != right:
        where = f"num_new={num_new}, token_budget={budget}, "
        where += ", ".join(f"{name}={value}" for name, value in given.items())
        raise WrongEntry(f"{where}: {got!r} is not it", str(right))


# -- kernels and tensors: the plain formula -----------------------------------------------------


def check_online_softmax(function: Callable, seed: int) -> str:
    try:
        import torch

        from minivllm.lab.exercises.labs import kernel_harness
    except ImportError as error:
        raise Fault(f"this lab needs Triton, which is made for Linux ({error})") from error
    if not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"):
        raise Fault("without a GPU set TRITON_INTERPRET=1 before Triton is first imported")
    if isinstance(function, FunctionType):
        raise Fault("put @triton.jit above the function")
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(16, 16, generator=generator)
    table = torch.tensor([5, 2, 7, 1, 8, 3, 6, 4, 9, 10], dtype=torch.int32)
    slots = [int(table[p // 4]) * 4 + p % 4 for p in range(40)]
    worlds = [
        ("one tile", 13, 99, 1.0),
        ("two tiles", 30, 99, 1.0),
        ("scores that grow", 40, 99, 3.0),
        ("scores beyond what exp can hold", 40, 99, 30.0),
        ("a window that hides the whole first tile", 40, 5, 1.0),
    ]
    for name, seq_len, window, sharp in worlds:
        keys, values = torch.randn(2, 11, 4, 16, generator=generator)
        keys.flatten(0, 1)[slots] *= torch.linspace(0.2, sharp, 40)[:, None]
        seen = slots[max(0, seq_len - window) : seq_len]
        right = (query @ keys.flatten(0, 1)[seen].T).softmax(-1) @ values.flatten(0, 1)[seen]
        got = call(kernel_harness.attend, function, query, keys, values, table, seq_len, window)
        if got.isnan().any():
            raise Fault(f"{name}: some rows are NaN")
        error = float((got - right).abs().max())
        if error > 1e-3:
            raise Fault(f"{name}: off by up to {error:.2g} from softmax over all scores at once")
    return f"equal to a softmax over all scores at once, in {len(worlds)} runs of a Triton kernel"


def check_merge(function: Callable, seed: int) -> str:
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name, cuts, sharp in (
        ("two parts", (0, 5, 12), 1.0),
        ("four parts", (0, 3, 4, 9, 12), 1.0),
        ("sums of exps beyond what a number can hold", (0, 3, 7, 12), 1000.0),
        ("an empty part", (0, 5, 5, 12), 1.0),
    ):
        scores = torch.randn(12, generator=generator, dtype=torch.float64) * sharp
        values = torch.randn(12, 6, generator=generator, dtype=torch.float64)
        parts = [slice(a, b) for a, b in pairwise(cuts)]
        results = torch.stack([scores[part].softmax(0) @ values[part] for part in parts])
        lse = torch.stack([scores[part].logsumexp(0) for part in parts])
        _check_tensor(
            f"{name}, lse {_short(lse)}", function, (results, lse), scores.softmax(0) @ values
        )
    return "equal to attention over all keys at once, empty parts and large sums included"


def check_top_p(function: Callable, seed: int) -> str:
    cases = 0
    for logits, top_p, right in _nuclei(seed):
        given = f"probabilities {_short(logits.softmax(-1))}, top_p {top_p}"
        _check_tensor(given, function, (logits.clone(), top_p), right)
        cases += 1
    return f"keeps what the engine keeps in {cases} rows, ties and masked tokens included"


def _nuclei(seed: int) -> Iterator[tuple]:
    import torch

    from minivllm.sampling.filters import apply_top_p

    rows = [[0.4, 0.3, 0.2, 0.1], [0.25] * 4, [0.1, 0.6, 0.1, 0.2], [0.0, 0.5, 0.5, 0.0]]
    rng = Random(f"lab top_p {seed}")
    rows += [[rng.random() ** 4 for _ in range(8)] for _ in range(20)]
    for row in rows:
        logits = torch.tensor(row, dtype=torch.float64).log()
        for top_p in (0.05, 0.45, 0.5, 0.8, 1.0):
            column = torch.tensor([[top_p]], dtype=torch.float64)
            yield logits, top_p, apply_top_p(logits[None], column)[0]


def _check_tensor(where: str, function: Callable, args: tuple, right) -> None:
    """The reader's tensor beside the right one, entry by entry."""
    import torch

    got = call(function, *args)
    if not isinstance(got, torch.Tensor) or got.shape != right.shape:
        raise Fault(f"{where}: return a tensor of shape {list(right.shape)}")
    for index, (mine, theirs) in enumerate(zip(got.tolist(), right.tolist(), strict=True)):
        if mine != theirs and not math.isclose(mine, theirs, rel_tol=1e-6, abs_tol=1e-9):
            raise WrongEntry(f"{where}: entry {index} is {mine:.4g}", f"{theirs:.4g}")


def _short(tensor) -> list[float]:
    return [round(x, 3) for x in tensor.tolist()]


# -- masks: the engine's own automaton ----------------------------------------------------------

_TOKENS = (
    None, b"a", b"b", b"ab", b"ba", b"aba", b"1", b"12", b"2", b".", b"1.", b".2", b"\xc3",
    b"\xa9", b"\xc3\xa9", b"\xa9a", b"b1", b"!", None, b"aaaa",
)  # fmt: skip
_PATTERNS = (r"(ab)+", r"a{2,4}b?", r"[12]+(\.2)?!?", "(é|a)*b", "(a|b)*abb", ".{1,3}", "!?a")
_PIECES = ("(ab)+", "a{2,4}", "b?", "[12]+", r"(\.2)?", "(é|a)*", "(a|b)*", ".{1,2}", "!?", "b")


def _drawn_patterns(seed: int) -> list[str]:
    rng = Random(f"lab mask {seed}")
    return ["".join(rng.sample(_PIECES, rng.randint(2, 4))) for _ in _PATTERNS]


def check_mask(function: Callable, seed: int) -> str:
    from minivllm.structured_output.backend_fsm import TokenAutomaton
    from minivllm.structured_output.dfa import DEAD, DFA
    from minivllm.structured_output.vocabulary import Vocabulary

    stops, places = {0, _TOKENS.index(b"!")}, 0
    vocabulary = Vocabulary(list(_TOKENS), frozenset([0]), lambda text: [])
    for pattern in _drawn_patterns(seed) if seed else _PATTERNS:
        dfa = DFA(pattern)
        automaton = TokenAutomaton(dfa, vocabulary)
        table = [
            {b: row[c] for b, c in enumerate(dfa.byte_class) if row[c] != DEAD} for row in dfa.rows
        ]
        for state, ends in enumerate(dfa.accepting):
            right = {int(i) for i in automaton.allowed(state).nonzero()[0]}
            right |= stops if ends else set()
            given = table, list(dfa.accepting), list(_TOKENS), set(stops), state
            got = call(function, *given)
            if not isinstance(got, (set, frozenset)):
                raise Fault("return a set of token ids")
            for i in sorted({*got} ^ right):
                where = f"{pattern!r}, state {state}: token {i}, {_TOKENS[i]}"
                verdict = "may come" if i in right else "may not come"
                raise WrongEntry(f"{where}, is judged wrongly", f"that it {verdict}")
            places += 1
    return f"the engine's own masks in {places} states, broken characters and ends included"
