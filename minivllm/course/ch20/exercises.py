"""Exercises of notebook 20: bytes of all-reduces, KV heads, blocks of stages, a full pipeline."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from minivllm.course.asking.answers import compare, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise

# -- core: bytes that ranks exchange ---------------------------------------------------------------


@seeded(difficulty=2, minutes=6)
def wire(rng: Random) -> Exercise:
    """All-reduces of a step, their bytes, and what a rank sends for them."""
    return Exercise(
        _check_wire,
        "Two matrices of each layer have cut inputs, and the embedding is cut, too. An all-reduce "
        "is of one vector for each token.",
        _solve_wire,
        "A dense model runs on tensor_parallel_size ranks. A step computes num_tokens tokens; a "
        "number takes 2 bytes. (1) How many all-reduces has the step? (2) How many bytes do the "
        "tensors have that one rank gives to them? (3) How many bytes does a rank send for them "
        "in a ring? For an all-reduce of b bytes among n ranks that is 2 * (n - 1) / n * b. "
        "Answer with a triple.",
        {
            "num_layers": rng.choice([16, 24, 28, 32, 40, 80]),
            "hidden_size": rng.choice([2048, 3072, 4096, 5120, 8192]),
            "num_tokens": rng.choice([1, 16, 64, 200, 512]),
            "tensor_parallel_size": rng.choice([4, 8]),
        },
    )


def _solve_wire(num_layers, hidden_size, num_tokens, tensor_parallel_size):
    num_all_reduces = 2 * num_layers + 1
    given = num_all_reduces * num_tokens * hidden_size * 2
    sent = 2 * (tensor_parallel_size - 1) * given // tensor_parallel_size
    return num_all_reduces, given, sent


def _check_wire(answer, num_layers, hidden_size, num_tokens, tensor_parallel_size) -> str:
    number, given, sent = whole_numbers(answer, ("all-reduces", "bytes given", "bytes sent"))
    size = tensor_parallel_size
    right, given_right, sent_right = _solve_wire(num_layers, hidden_size, num_tokens, size)
    compare(
        number,
        right,
        {
            "all-reduces: the embedding has one, too: a rank has only some of the token ids.": (
                2 * num_layers
            ),
            "all-reduces: attention has one, and so has the MLP.": num_layers + 1,
            "all-reduces: a layer has two, one behind attention and one behind the MLP.": (
                num_layers
            ),
            "all-reduces: the logits are put side by side, which is an all-gather.": right + 1,
            "all-reduces: a matrix whose outputs are cut needs none.": 4 * num_layers + 1,
        },
        f"all-reduces: not {number}. Count the matrices whose inputs are cut, and the embedding.",
        f"all-reduces: there are {right}.",
    )
    compare(
        given,
        given_right,
        {
            "bytes given: these are numbers; each takes 2 bytes.": given_right // 2,
            "bytes given: that is one all-reduce.": 2 * num_tokens * hidden_size,
            "bytes given: each token has a vector of its own.": 2 * right * hidden_size,
            "bytes given: every rank gives whole vectors; they are parts of a sum, not parts of "
            "the vector.": given_right // size,
            "bytes given: that is what all ranks give.": given_right * size,
        },
        f"bytes given: not {given:,}.",
        f"bytes given: it is {given_right:,}.",
    )
    compare(
        sent,
        sent_right,
        {
            "bytes sent: a ring goes round twice, to add and to spread the sums.": sent_right // 2,
            "bytes sent: nothing is sent for a rank's own part of the sums: n - 1 of n.": (
                2 * given_right
            ),
            "bytes sent: in a ring a rank does not send all it has to each other one.": (
                given_right * (size - 1)
            ),
            "bytes sent: that is what all ranks send.": sent_right * size,
            "bytes sent: that is one all-reduce.": sent_right // right,
        },
        f"bytes sent: not {sent:,}.",
        f"bytes sent: it is {sent_right:,}.",
    )
    return f"{size} ranks send {sent_right / given_right} times what they give, 2 ranks once that."


# -- core: heads of a rank -------------------------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def kv_bytes(rng: Random) -> FunctionExercise:
    """Bytes of K and V that each rank keeps, where the heads can be divided."""
    calls: list[tuple] = []
    shown: list[Callable] = [
        lambda kv_heads, size, kept: kept and 1 < size < kv_heads,
        lambda kv_heads, size, kept: kept and size > kv_heads > 1,
        lambda kv_heads, size, kept: not kept,
    ]
    while len(calls) < 50:
        group = rng.choice([1, 2, 4, 7, 8])
        num_kv_heads = rng.choice([1, 2, 4, 6, 8])
        head_dim = rng.choice([64, 80, 128])
        size = rng.choice([1, 2, 3, 4, 6, 7, 8, 12, 16, 32])
        num_heads = num_kv_heads * group
        kept = _solve_kv_bytes()(num_heads, num_kv_heads, head_dim, size)
        if len(calls) >= 3 or shown[len(calls)](num_kv_heads, size, kept):
            calls.append((num_heads, num_kv_heads, head_dim, size))
    return FunctionExercise(
        "Write kv_bytes(num_heads, num_kv_heads, head_dim, size): the bytes of K and V of one "
        "token in one layer that each of size tensor-parallel ranks keeps, 2 bytes a number; None "
        "if size ranks cannot share the heads. A rank has whole heads, as many as the others. "
        "Where there are fewer KV heads than ranks, each KV head is on several ranks, and on "
        "equally many.",
        "The query heads must be divisible by size. Of KV heads and size one must be divisible "
        "by the other.",
        _solve_kv_bytes,
        calls=calls,
        learnt="from as many ranks as KV heads on, more of them save no KV bytes.",
        mistakes=_KV_MISTAKES,
    )


def _solve_kv_bytes():
    def kv_bytes(num_heads, num_kv_heads, head_dim, size):
        if num_heads % size or (num_kv_heads % size and size % num_kv_heads):
            return None
        num_local = max(1, num_kv_heads // size)
        return 2 * num_local * head_dim * 2

    return kv_bytes


def _kv_wrongly(
    query_heads_divide: bool = True, kv_heads_divide: bool = True, repeated: bool = True,
    least: int = 1, per_head: int = 4, of_queries: bool = False, cut: bool = True,
    whole_heads: bool = True,
) -> Callable:  # fmt: skip
    """Make a ``kv_bytes``, perhaps with a mistake."""

    def kv_bytes(num_heads, num_kv_heads, head_dim, size):
        num_shared = num_heads if of_queries else num_kv_heads
        if query_heads_divide and num_heads % size:
            return None
        if kv_heads_divide and num_kv_heads % size and not (repeated and size % num_kv_heads == 0):
            return None
        if not whole_heads:
            return per_head * head_dim * num_shared // size
        return per_head * head_dim * max(least, num_shared // size if cut else num_shared)

    return kv_bytes


_KV_MISTAKES = {
    "K and V are kept, not one of them; and a number has 2 bytes.": _kv_wrongly(per_head=2),
    "these are numbers, and only of K: there is V, too, and a number has 2 bytes.": (
        _kv_wrongly(per_head=1)
    ),
    "a rank keeps K and V of its own heads, not of all.": _kv_wrongly(cut=False),
    "query heads keep nothing; only KV heads do.": _kv_wrongly(of_queries=True),
    "a rank has at least one KV head, whole.": _kv_wrongly(least=0),
    "heads are not cut: a rank has at least one KV head, whole.": _kv_wrongly(whole_heads=False),
    "a KV head may be on several ranks.": _kv_wrongly(repeated=False),
    "size must divide the query heads.": _kv_wrongly(query_heads_divide=False),
    "of the KV heads and size one must divide the other.": _kv_wrongly(kv_heads_divide=False),
}


# -- stretch: blocks of stages ---------------------------------------------------------------------


@seeded(difficulty=3, minutes=12)
def blocks(rng: Random) -> FunctionExercise:
    """Blocks of an engine whose stages have unlike numbers of layers."""
    calls: list[tuple] = []
    while len(calls) < 40:
        num_layers = rng.choice([5, 6, 10, 11, 22, 30])
        num_stages = rng.choice([2, 3, 4])
        free = [rng.randint(20, 90) * 1000 for _ in range(num_stages)]
        block_bytes = rng.choice([16, 32, 40])
        layers = _stage_layers(num_layers, free)
        counts = [f // (n * block_bytes) for f, n in zip(free, layers, strict=True)]
        if len(set(counts)) == num_stages and (counts[0] > min(counts) or len(calls) >= 3):
            calls.append((num_layers, free, block_bytes))
    return FunctionExercise(
        "Write num_blocks(num_layers, free_bytes, block_bytes): the number of blocks of an engine "
        "with pipeline stages. free_bytes has the bytes that each stage has left for K and V, the "
        "first stage first; a block takes block_bytes for each layer of a stage. Layers are "
        "divided equally. What remains goes one each to the last stage but one, to the one before "
        "it, and so on.",
        "How many layers has each stage, and how many blocks would it have alone? All stages use "
        "the same block ids.",
        _solve_blocks,
        calls=calls,
        learnt="a block id must be there on every rank, so the least number counts.",
        mistakes=_BLOCK_MISTAKES,
    )


def _solve_blocks():
    def num_blocks(num_layers, free_bytes, block_bytes):
        num_stages = len(free_bytes)
        each, rest = divmod(num_layers, num_stages)
        counts = []
        for stage, free in enumerate(free_bytes):
            gets_one_more = num_stages - 1 - rest <= stage < num_stages - 1
            counts.append(free // ((each + gets_one_more) * block_bytes))
        return min(counts)

    return num_blocks


def _stage_layers(num_layers: int, free_bytes: list[int], more_to: str = "before last"):
    """Layers of each stage, perhaps with a mistake."""
    num_stages = len(free_bytes)
    each, rest = divmod(num_layers, num_stages)
    start = num_stages - 1 - rest if more_to == "before last" else 0
    layers = [each + (start <= stage < start + rest) for stage in range(num_stages)]
    if more_to == "last":
        layers = [each] * (num_stages - 1) + [each + rest]
    same = {"nowhere": each, "everywhere": each + (rest > 0)}
    return [same[more_to]] * num_stages if more_to in same else layers


def _blocks_wrongly(
    of_all: Callable = min, more_to: str = "before last", whole: bool = False
) -> Callable:
    """Make a ``num_blocks``, perhaps with a mistake."""

    def num_blocks(num_layers, free_bytes, block_bytes):
        layers = _stage_layers(num_layers, free_bytes, more_to)
        layers = [num_layers] * len(layers) if whole else layers
        pairs = zip(free_bytes, layers, strict=True)
        return of_all([free // (n * block_bytes) for free, n in pairs])

    return num_blocks


_BLOCK_MISTAKES = {
    "a stage with fewer blocks would be asked for ids that it does not have.": _blocks_wrongly(max),
    "a block is on all stages, each with its own layers: blocks of stages do not add up.": (
        _blocks_wrongly(sum)
    ),
    "the other stages must have these blocks, too.": _blocks_wrongly(lambda counts: counts[0]),
    "the last stage has no blocks of its own; look at all.": _blocks_wrongly(
        lambda counts: counts[-1]
    ),
    "a stage keeps K and V of its own layers only.": _blocks_wrongly(whole=True),
    "what remains of the layers goes to the stages before the last.": _blocks_wrongly(
        more_to="last"
    ),
    "what remains of the layers does not go to the first stages.": _blocks_wrongly(more_to="first"),
    "some layers are on no stage: what of the rest?": _blocks_wrongly(more_to="nowhere"),
    "the stages do not have more layers in all than the model.": _blocks_wrongly(
        more_to="everywhere"
    ),
}


# -- stretch: a full pipeline ----------------------------------------------------------------------


@seeded(difficulty=3, minutes=12)
def fill(rng: Random) -> FunctionExercise:
    """The smallest max_num_seqs that keeps every stage busy."""
    calls: list[tuple] = []
    while len(calls) < 40:
        prompt_len = rng.choice([8, 32, 100, 128])
        together = rng.choice([2, 3, 4, 8])
        calls.append((prompt_len, prompt_len * together, rng.choice([2, 3, 4, 8])))
        if len(calls) == 3:
            calls.append((64, 64, 4))
    return FunctionExercise(
        "A queue is full of requests with prompts of prompt_len tokens and long answers; "
        "max_num_batched_tokens is a multiple of prompt_len, and memory is enough. A request whose "
        "token is on its way is passed over. Write fill(prompt_len, max_num_batched_tokens, "
        "num_stages): the smallest max_num_seqs with which, once these prompts are computed, each "
        "of the num_stages stages has a plan with at least one request in it.",
        "max_num_seqs is the limit of all that run, in all plans. Which requests are in the first "
        "plan, and who is left for the next one? Each plan's requests stay together.",
        _solve_fill,
        calls=calls,
        learnt="nothing splits a batch for the pipeline: a large budget can leave stages empty.",
        mistakes={
            "one request each is not what the first plan takes: it takes all that its budget "
            "allows.": lambda prompt_len, budget, num_stages: num_stages,
            "the last plan need not be full.": lambda prompt_len, budget, num_stages: (
                budget // prompt_len * num_stages
            ),
            "all of these are in the first plans, and one stage has none.": (
                lambda prompt_len, budget, num_stages: budget // prompt_len * (num_stages - 1)
            ),
            "all of these are in one plan.": lambda prompt_len, budget, num_stages: (
                budget // prompt_len
            ),
            "the prompts are computed in the first plans; in later ones each request has one "
            "token, and none of them changes its plan.": (
                lambda prompt_len, budget, num_stages: budget * (num_stages - 1) + 1
            ),
        },
    )


def _solve_fill():
    def fill(prompt_len, max_num_batched_tokens, num_stages):
        num_in_a_plan = max_num_batched_tokens // prompt_len
        return num_in_a_plan * (num_stages - 1) + 1

    return fill


# -- design: where more ranks bring nothing --------------------------------------------------------


@seeded(difficulty=3, minutes=8)
def floor(rng: Random) -> Exercise:
    """The time that no number of ranks gets below, read from a table."""
    while True:
        least = rng.randint(12, 45)
        weights = 8 * rng.randint(6, 30)
        if weights // 2 > least + 3 and weights // 8 < least - 2 and weights // 4 != least:
            break
    token_ms = {n: max(weights // n, least) for n in (1, 2, 4, 8)}
    return Exercise(
        _check_floor,
        "Halve the first time again and again, and look where the table stops to do so.",
        _solve_floor,
        "A large model writes for one user. token_ms has the milliseconds of a step by "
        "tensor_parallel_size. The GPUs' part of a step is divided by the number of ranks; the "
        "CPU's part, to plan a step and to start its kernels, is not, and the longer of the two "
        "decides. (1) How long is the CPU's part? (2) Which is the smallest size with the "
        "shortest step? (3) How many milliseconds would a step take with 8 ranks if the CPU's "
        "part took no time? Answer with a triple.",
        {"token_ms": token_ms},
    )


def _solve_floor(token_ms):
    least = min(token_ms.values())
    smallest = min(size for size, ms in token_ms.items() if ms == least)
    return least, smallest, token_ms[1] // 8


def _check_floor(answer, token_ms) -> str:
    cpu, size, hidden = whole_numbers(answer, ("CPU's part", "size", "milliseconds without it"))
    right = _solve_floor(token_ms)
    compare(
        cpu,
        right[0],
        {
            "CPU's part: that is the GPU's on one rank.": token_ms[1],
            "CPU's part: that is what the GPUs would take with 8 ranks.": right[2],
            "CPU's part: the longer of the two decides; they are not added.": right[0] - right[2],
        },
        f"CPU's part: not {cpu}. With enough ranks only the CPU's part is seen.",
        f"CPU's part: it is {right[0]} ms.",
    )
    compare(
        size,
        right[1],
        {
            f"size: with {right[1]} ranks the step is as short.": size if size > right[1] else None,
            "size: more ranks still make it shorter.": size if size in token_ms else None,
        },
        f"size: {size} is not in the table.",
    )
    compare(
        hidden,
        right[2],
        {
            "milliseconds without it: the CPU's part is what that time is.": right[0],
            "milliseconds without it: that is with 1 rank.": token_ms[1],
            "milliseconds without it: a time at the CPU's part says nothing of the GPUs; begin "
            "with 1 rank.": token_ms[4] // 2,
        },
        f"milliseconds without it: not {hidden}. Divide the GPUs' part on one rank.",
        f"milliseconds without it: {right[2]}.",
    )
    return f"with 8 ranks the GPUs wait for the CPU {1 - right[2] / right[0]:.0%} of the time."
