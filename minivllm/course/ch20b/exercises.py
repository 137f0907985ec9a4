"""Exercises of notebook 20b: blocks of stages, a full pipeline, how many replicas."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from minivllm.course.asking.answers import NotYet, compare, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise

# -- core: blocks of stages ------------------------------------------------------------------------


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


# -- design: how many replicas -------------------------------------------------------------------

SIZES = (1, 2, 4, 8)


@seeded(difficulty=4, minutes=12)
def replicas(rng: Random) -> Exercise:
    """The most replicas of a model on eight devices that still hold enough chats."""
    while True:
        given = {
            "device_gb": rng.choice([22, 36, 72, 126]),
            "weights_gb": rng.choice([14, 26, 64, 140]),
            "chat_gb": rng.choice([2, 3, 5]),
            "num_chats": rng.randint(20, 260),
        }
        size, _ = _solve_replicas(**given)
        fitting = [d for d in SIZES if d * given["device_gb"] > given["weights_gb"]]
        if size and (size > fitting[0] or (size == 2 and rng.random() < 0.3)):
            break
    return Exercise(
        _check_replicas,
        "Count the chats of one replica first, rounded down; then all of them.",
        _solve_replicas,
        "There are 8 devices with device_gb GB each. A replica of the model takes 1, 2, 4 or 8 of "
        "them, which share its weights of weights_gb GB; what is left of a replica's memory is for "
        "K and V, chat_gb GB for each of its chats. The fewer devices a replica has, the less is "
        "exchanged. What is the smallest number of devices for a replica with which num_chats "
        "chats fit at once into all replicas together, and how many fit then? Answer with a pair.",
        given,
    )


def _solve_replicas(device_gb, weights_gb, chat_gb, num_chats):
    for size in (1, 2, 4, 8):
        left = size * device_gb - weights_gb  # of one replica, for K and V
        chats = 8 // size * max(0, left // chat_gb)
        if chats >= num_chats:
            return size, chats
    return 0, 0


def _check_replicas(answer, device_gb, weights_gb, chat_gb, num_chats) -> str:
    size, chats = whole_numbers(answer, ("devices", "chats"))
    right, most = _solve_replicas(device_gb, weights_gb, chat_gb, num_chats)
    if size not in SIZES:
        raise NotYet("devices: one of 1, 2, 4, 8.")
    left = size * device_gb - weights_gb
    if left <= 0:
        raise NotYet(f"devices: the weights do not fit into {size}.")
    of_one = left // chat_gb
    fit = 8 // size * of_one
    if fit < num_chats:
        raise NotYet(
            f"devices: with {size} each of {8 // size} replicas has room for {of_one}; that is "
            f"{fit} chats in all."
        )
    if size > right:
        raise NotYet(f"devices: {size} are enough, but so are fewer.")
    compare(
        chats,
        most,
        {
            "chats: that is one replica.": of_one,
            "chats: each replica has the weights once more.": (
                (8 * device_gb - weights_gb) // chat_gb
            ),
            "chats: the weights take memory, too.": 8 * device_gb // chat_gb,
            "chats: a chat is in one replica; count each replica's, rounded down.": (
                8 // size * left // chat_gb
            ),
            "chats: that is how many must fit; more do.": num_chats,
        },
        f"chats: not {chats}. A replica has {left} GB for K and V.",
        f"chats: it is {most}.",
    )
    return f"{8 // right} replicas of {right}; the weights are stored {8 // right} times."
