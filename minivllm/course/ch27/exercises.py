"""Exercises of notebook 27: what goes, what is found, groups, room, a memory that forgets."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.answers import NotYet, compare, number_list, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise
from minivllm.course.ch27.forgetting import NUM_LAYERS, bytes_held, forgetting, groups_of
from minivllm.course.ch27.rules import Lookup, agree
from minivllm.course.ch27.window_puzzle import puzzle as puzzle
from minivllm.utils.math_utils import cdiv

# -- core: what may go ---------------------------------------------------------------------------


@seeded(difficulty=2, minutes=5)
def behind(rng: Random) -> Exercise:
    """Blocks of a window's table that go back to the pool before a step."""
    while True:
        block_size = rng.choice([4, 8])
        window = rng.randint(block_size + 2, 3 * block_size + 1)
        computed = rng.randint(5 * block_size, 8 * block_size)
        num_new = rng.choice([1, 1, 4, 16])
        left = max(0, computed - window + 1) // block_size
        num_null = rng.randint(0, max(0, left - 2))
        if left - num_null >= 2 and (computed - window + 1) % block_size:
            break
    ids = rng.sample(range(1, 60), cdiv(computed, block_size) - num_null)
    return Exercise(
        _check_behind,
        "The first token of the step is at position num_computed, and sees the window - 1 tokens "
        "before it. A block may go if none of its tokens is among them.",
        _solve_behind,
        "A request has num_computed tokens with K and V, and its next step computes num_new more. "
        "This is its table in a group of windows; 0 is the null block. Which blocks go back to the "
        "pool before the step, in the order in which they are freed: the last of them first? "
        "Answer with a list of block ids.",
        {
            "block_size": block_size,
            "window": window,
            "num_computed": computed,
            "num_new": num_new,
            "table": [0] * num_null + ids,
        },
    )


def _solve_behind(block_size, window, num_computed, num_new, table):
    first_seen = max(0, num_computed - window + 1)  # by the first token of the step
    left = first_seen // block_size
    return [block_id for block_id in table[:left] if block_id][::-1]


def _check_behind(answer, block_size, window, num_computed, num_new, table) -> str:
    ids = number_list(answer, "the ids of the blocks that go")
    right = _solve_behind(block_size, window, num_computed, num_new, table)

    def going(left: int) -> list[int]:
        return [block_id for block_id in table[:left] if block_id][::-1]

    after = max(0, num_computed + num_new - window + 1) // block_size
    late = max(0, num_computed - window + 1 - block_size) // block_size
    compare(
        ids,
        right,
        {
            "the last of them is freed first.": right[::-1],
            "the null block belongs to no request, and is not freed.": ids if 0 in ids else None,
            "one of these still holds a token that is read: round down.": going(
                cdiv(num_computed - window + 1, block_size)
            ),
            "the first token of the step still reads some of these.": going(after),
            "one block more is behind the window.": going(late),
        },
        f"not {ids}: the first token that is read is at position {num_computed - window + 1}.",
        f"it is {right}.",
    )
    return f"{len(right)} blocks are free for others, before room for the step is looked for."


# -- core: how long is the hit -------------------------------------------------------------------


@seeded(difficulty=3, minutes=8)
def hit(rng: Random) -> Exercise:
    """The hit of a prompt in two groups, and what others have of it."""
    while True:
        block_size = rng.choice([4, 8])
        window = rng.randint(block_size + 2, 3 * block_size + 1)
        n = rng.randint(8, 10)
        full = "x" * rng.randint(4, n)
        windows = "".join(rng.choice("xx.") for _ in range(n))
        given = {
            "block_size": block_size,
            "window": window,
            "num_prompt_tokens": n * block_size + rng.randint(0, block_size - 1),
            "full": full + "." * (n - len(full)),
            "windows": windows,
        }
        tokens, junction = _solve_hit(**given)
        if tokens and junction and tokens != _from_the_left(**given):
            break
    return Exercise(
        _check_hit,
        "Full attention needs all blocks from the first one on, a window only those that the last "
        "window - 1 tokens of the hit touch. Look from the right, among what full attention has.",
        _solve_hit,
        "A model has a group of full attention and one of windows. For each full block of a prompt "
        "`full` and `windows` say whether it is in the prefix cache (x) or not (.), in that group. "
        "How many tokens does the prompt find? And what is its junction: the number of tokens, "
        "from the first one on, that full attention finds, or 0 if that is no more? Answer with a "
        "pair.",
        given,
    )


def _solve_hit(block_size, window, num_prompt_tokens, full, windows):
    most = (num_prompt_tokens - 1) // block_size
    has = next((i for i in range(most) if full[i] != "x"), most)
    need = -(-(window - 1) // block_size)
    for end in range(has, 0, -1):
        if all(there == "x" for there in windows[max(0, end - need) : end]):
            break
    else:
        end = 0
    return end * block_size, has * block_size if has > end else 0


def _from_the_left(block_size, window, num_prompt_tokens, full, windows):
    """Tokens of a hit that is looked for as full attention's, in both groups."""
    both = (a == b == "x" for a, b in zip(full, windows, strict=True))
    return block_size * next((i for i, there in enumerate(both) if not there), len(full))


def _check_hit(answer, block_size, window, num_prompt_tokens, full, windows) -> str:
    given = {
        "block_size": block_size,
        "window": window,
        "num_prompt_tokens": num_prompt_tokens,
        "full": full,
        "windows": windows,
    }
    tokens, junction = whole_numbers(answer, ("tokens found", "junction"))
    kinds = ((full, None), (windows, window))
    lookups = [
        Lookup([each == "x" for each in found], seen, block_size, block_size)
        for found, seen in kinds
    ]
    right, others = agree(lookups, (num_prompt_tokens - 1) // block_size * block_size)
    compare(
        tokens,
        right,
        {
            "that is what full attention has; the windows must have the end of it, too.": (
                lookups[0](num_prompt_tokens - 1)
            ),
            "a window needs only the end of a hit: look from the right.": _from_the_left(**given),
            "full attention has less than that.": lookups[1](num_prompt_tokens - 1),
            "window - 1 tokens are read, not more.": _solve_hit(
                **{**given, "window": window + block_size}
            )[0],
            "a hit is whole blocks.": tokens if tokens % block_size else None,
            "at least one token is computed.": num_prompt_tokens,
        },
        f"not {tokens}: {_blocks_read(tokens, block_size, window)}",
        f"it is {right}.",
    )
    compare(
        junction,
        others,
        {
            "the junction is what the groups do not agree on: it is longer than the hit.": right,
            "it is in tokens, from the beginning.": others - right,
        },
        f"the junction is not {junction}: what has full attention found?",
        f"the junction is {others}.",
    )
    return f"{right} of {num_prompt_tokens} tokens; behind {others} the windows keep blocks now."


def _blocks_read(tokens: int, block_size: int, window: int) -> str:
    if tokens <= 0:
        return "there is a hit."
    first = max(0, tokens - window + 1) // block_size
    return f"its windows read blocks {first} to {max(first, tokens // block_size - 1)}."


# -- stretch: groups -----------------------------------------------------------------------------


@seeded(difficulty=3, minutes=8)
def grouping(rng: Random) -> Exercise:
    """Groups of a model's layers, and the places that are lost."""
    while True:
        num_full = rng.randint(2, 12)
        num_window = rng.randint(num_full, 6 * num_full)
        second = rng.choice([0, 0, num_full, 2 * num_full])
        given = {"full": num_full, "window 1024": num_window, "window 4096": second}
        layers = {kind: number for kind, number in given.items() if number}
        _, num_groups, empty = _solve_grouping(layers)
        if num_groups > 2 and empty:
            break
    return Exercise(
        _check_grouping,
        "The kind with the fewest layers says how many a group has, but if the largest kind has "
        "less than 1.5 times as many, the largest does.",
        _solve_grouping,
        "A model has these layers of each kind; a layer's page has the same number of bytes in all "
        "of them. Each group has layers of one kind, and a block has room for the layers of any "
        "group. (1) Layers that a block has room for, (2) groups, (3) places that stay empty, in "
        "all groups together? Answer with three numbers.",
        {"layers": layers},
    )


def _solve_grouping(layers):
    fewest = min(layers.values())
    most = max(layers.values())
    size = most if most < 1.5 * fewest else fewest
    groups = sum(-(-number // size) for number in layers.values())
    return size, groups, groups * size - sum(layers.values())


def _check_grouping(answer, layers) -> str:
    got = whole_numbers(answer, ("layers of a block", "groups", "empty places"))
    right = list(_solve_grouping(layers))
    fewest = min(layers.values())
    most = max(layers.values())
    total = sum(layers.values())
    compare(
        got[0],
        right[0],
        {
            "each group has one kind of layers, and the largest kind is cut.": most,
            f"{most} is less than 1.5 times {fewest}: then the largest kind is not cut.": fewest,
            "these are all layers; they do not share one block table.": total,
        },
        f"a block does not have room for {got[0]} layers.",
        f"a block has room for {right[0]} layers.",
    )
    compare(
        got[1],
        right[1],
        {
            "these are the kinds; a large kind is cut into several groups.": len(layers),
            "a group has one kind only, so round up for each kind.": cdiv(total, right[0]),
            "what is left of a kind needs a group, too: round up.": sum(
                number // right[0] for number in layers.values()
            ),
        },
        f"not {got[1]} groups.",
        f"it is {right[1]} groups.",
    )
    compare(
        got[2],
        right[2],
        {"a group may be short, and its block is not.": 0},
        f"{right[1]} groups of {right[0]} places, and {total} layers: not {got[2]} empty ones.",
        f"it is {right[2]}.",
    )
    share = right[2] / (right[0] * right[1])
    return f"{share:.0%} of the pool's places are lost, if all groups hold equally much."


# -- stretch: how many fit -----------------------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def fit(rng: Random) -> Exercise:
    """Requests that have room in a pool while prompts are computed, and while all decode."""
    calls = []
    for _ in range(40):
        window = rng.choice([128, 500, 512, 1000, 1024])
        budget = rng.choice([512, 2048, 8192])
        length = rng.choice([rng.randint(600, 2_000), rng.randint(2_000, 33_000)])
        num_full = rng.choice([1, 1, 2])
        num_window = rng.randint(1, 6)
        cap = cdiv(min(window - 1 + budget, length), 16) + 1
        whole = cdiv(length, 16)
        one = num_full * whole + num_window * min(whole, cap)
        num_blocks = rng.randint(2, 9) * one + rng.choice([0, 1, rng.randrange(one)])
        calls.append((num_blocks, 16, num_full, num_window, window, budget, length))
    return FunctionExercise(
        "How many requests of `length` tokens have room in a pool of num_blocks blocks (the null "
        "block among them), with num_full groups of full attention and num_window groups of "
        "windows? Write fit(num_blocks, block_size, num_full, num_window, window, budget, length); "
        "it returns a pair: (admitted, decoding). While a prompt is computed a window's group may "
        "hold the tokens that its window and one step of `budget` tokens touch; while it decodes, "
        "the window and one token. It never holds more than the sequence.",
        "window - 1 tokens and those of the step are W - 1 + budget in a row; wherever they begin, "
        "they touch at most one block more than their number divided by block_size, rounded up.",
        _solve_fit,
        calls=calls,
        learnt="the budget decides how many begin, the length how many go on.",
        mistakes={
            "admitted: while a prompt is computed a window needs room for the budget, too.": (
                _fit_with(budget_counts=False)
            ),
            "the null block holds no token.": _fit_with(null_counts=True),
            "a window that begins inside a block touches one more.": _fit_with(one_more=0),
            "windows keep no more than they see.": _fit_with(windows_keep_all=True),
            "each group has blocks of its own.": _fit_with(groups_count=False),
            "a window's group never holds more than the sequence has.": _fit_with(may_exceed=True),
        },
    )


def _fit_with(
    *,
    budget_counts: bool = True,
    null_counts: bool = False,
    one_more: int = 1,
    windows_keep_all: bool = False,
    groups_count: bool = True,
    may_exceed: bool = False,
):
    """A function like ``fit`` that forgets something."""

    def mistaken(num_blocks, block_size, num_full, num_window, window, budget, length):
        whole = cdiv(length, block_size)
        found = []
        for tokens in (window - 1 + budget * budget_counts, window):
            held = cdiv(min(tokens, length), block_size) + one_more
            if tokens == window:
                held = cdiv(window - 1, block_size) + one_more
            if not may_exceed:
                held = min(held, whole)
            if windows_keep_all:
                held = whole
            times = (num_full, num_window) if groups_count else (1, 1)
            found.append((num_blocks - 1 + null_counts) // (times[0] * whole + times[1] * held))
        return tuple(found)

    return mistaken


def _solve_fit():
    def fit(num_blocks, block_size, num_full, num_window, window, budget, length):
        def blocks(tokens):
            return -(-tokens // block_size)  # rounded up

        whole = blocks(length)
        cap = min(whole, blocks(min(window - 1 + budget, length)) + 1)
        while_decoding = min(whole, blocks(window - 1) + 1)
        usable = num_blocks - 1
        admitted = usable // (num_full * whole + num_window * cap)
        decoding = usable // (num_full * whole + num_window * while_decoding)
        return admitted, decoding

    return fit


# -- design: a memory that forgets ---------------------------------------------------------------


@seeded(difficulty=4, minutes=15)
def forget(rng: Random) -> Exercise:
    """The layers of the embedded model that may have a window, for the fewest bytes."""
    windows = sorted({window for window, _ in forgetting()})
    while True:
        given = {
            "num_tokens": rng.randrange(400, 8000, 100),
            "windows": sorted(rng.sample(windows, 2)),
            "at_least": rng.choice([0.9, 0.95, 0.98]),
        }
        if len(_solve_forget(**given)[1]) > 1:
            break
    return Exercise(
        _check_forget,
        "First cross out the choices that read too few tables: ch27.forgetting() is a dict of what "
        "was measured. Then form groups: which choice leaves few places empty?",
        _solve_forget,
        "Which layers of the embedded model shall have a window, and of how many tokens, so that a "
        "chat of num_tokens tokens holds the fewest bytes while it decodes, and at least this "
        "share of tables is still read? All layers that have one have the same. Answer with a pair "
        "(window, layers), such as (96, [0, 1]).",
        given,
    )


def _solve_forget(num_tokens, windows, at_least):
    choices = [
        (bytes_held(num_tokens, window, layers), window, list(layers))
        for (window, layers), share in forgetting().items()
        if window in windows and share >= at_least
    ]
    _, window, layers = min(choices)
    return window, layers


def _check_forget(answer, num_tokens, windows, at_least) -> str:
    ok = isinstance(answer, (list, tuple)) and len(answer) == 2
    if not ok or not isinstance(answer[1], (list, tuple)):
        raise NotYet("give a pair: a window, and a list of layers.")
    (window,) = whole_numbers(answer[:1], ("the window",))
    layers = tuple(sorted(number_list(answer[1], "the layers with a window")))
    if window not in windows:
        raise NotYet(f"the window may be {' or '.join(map(str, windows))}, and not {window}.")
    if not layers or len(set(layers)) < len(layers) or not set(layers) <= set(range(NUM_LAYERS)):
        raise NotYet(f"name layers from 0 to {NUM_LAYERS - 1}, at least one, and each once.")
    measured = forgetting()
    if 3 in layers:
        most = max(share for (_, which), share in measured.items() if which == (3,))
        raise NotYet(f"with a window in layer 3 at most {most:.0%} of tables are read.")
    share = measured[window, layers]
    if share < at_least:
        raise NotYet(f"so {share:.0%} of tables are read, and {at_least:.0%} are asked for.")
    held = bytes_held(num_tokens, window, layers)
    best = _solve_forget(num_tokens, windows, at_least)
    least = bytes_held(num_tokens, best[0], tuple(best[1]))
    if held > least:
        groups, _ = groups_of(window, layers)
        size = max(len(group.layer_names) for group in groups)
        empty = size * len(groups) - NUM_LAYERS
        told = f"{share:.0%} of tables are read, with {held:,} bytes"
        told += f"; {len(groups)} groups of {size} layers leave {empty} empty" * bool(empty)
        raise NotYet(f"{told}. Fewer bytes are possible.", f"{told}; {best} has {least:,}.")
    whole = bytes_held(num_tokens, window, ())
    return f"{held:,} bytes, and {whole:,} if no layer forgets; {share:.0%} of tables are read."
