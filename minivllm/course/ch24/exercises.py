"""Exercises of notebook 24: steps, the row that LAST takes, how many to rerank."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.answers import NotYet, compare, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise
from minivllm.utils.math_utils import cdiv

# -- core: steps ---------------------------------------------------------------------------------


@seeded(difficulty=2, minutes=6)
def steps(rng: Random) -> Exercise:
    """Steps of a batch of prompts that are embedded, and that are answered."""
    return Exercise(
        _check_steps,
        "A step computes up to max_num_batched_tokens prompt tokens. The token that the last chunk "
        "of a prompt gives is its first output token.",
        _solve_steps,
        "Prompts of this length all arrive at once; chunked prefill is on, nothing is cached, and "
        "memory and max_num_seqs are enough. (1) How many steps does an engine take that embeds "
        "them? (2) Alone in a generating engine, one of these prompts is answered with num_output "
        "tokens. How many steps does that take? Answer with a pair.",
        {
            "num_prompts": rng.choice([12, 20, 30, 50]),
            "prompt_len": rng.choice([150, 170, 200, 300]),
            "max_num_batched_tokens": rng.choice([64, 128]),
            "num_output": rng.choice([10, 20, 40]),
        },
    )


def _solve_steps(num_prompts, prompt_len, max_num_batched_tokens, num_output):
    embed = cdiv(num_prompts * prompt_len, max_num_batched_tokens)
    return embed, cdiv(prompt_len, max_num_batched_tokens) + num_output - 1


def _check_steps(answer, num_prompts, prompt_len, max_num_batched_tokens, num_output) -> str:
    embed, generate = whole_numbers(answer, ("embed", "generate"))
    right, other = _solve_steps(num_prompts, prompt_len, max_num_batched_tokens, num_output)
    chunks = cdiv(prompt_len, max_num_batched_tokens)
    compare(
        embed,
        right,
        {
            "embed: a step is filled with the next prompt's tokens; no prompt begins a new one.": (
                num_prompts * chunks
            ),
            "embed: the last step is not full, and it is a step, too.": (
                num_prompts * prompt_len // max_num_batched_tokens
            ),
            "embed: nothing is sampled afterwards: no step comes behind the last chunk.": right + 1,
            "embed: that is one prompt.": chunks,
        },
        f"embed: not {embed} steps. All prompts together have {num_prompts * prompt_len} tokens.",
        f"embed: it is {right} steps.",
    )
    compare(
        generate,
        other,
        {
            "generate: the step of the last chunk gives the first output token.": other + 1,
            "generate: these are the decodes; the prompt takes steps as well.": num_output,
            "generate: that is the prompt alone.": chunks,
            "generate: of one prompt, not of all.": right + num_output - 1,
        },
        f"generate: not {generate} steps. The prompt is {chunks} chunks.",
        f"generate: it is {other} steps.",
    )
    return f"{num_prompts} vectors in {right} steps, one answer in {other}."


# -- stretch: the row that LAST takes ------------------------------------------------------------


@seeded(difficulty=2, minutes=8)
def rows(rng: Random) -> FunctionExercise:
    """The row of a step that LAST takes of each prompt."""
    calls: list[tuple] = []
    while len(calls) < 40:
        num = rng.randint(2, 4)
        new = [rng.randint(1, 6) for _ in range(num)]
        computed = [rng.choice([0, 0, rng.randint(1, 8)]) for _ in range(num)]
        left = [rng.choice([0, 0, rng.randint(1, 6)]) for _ in range(num)]
        lengths = [a + b + c for a, b, c in zip(computed, new, left, strict=True)]
        if len(calls) >= 3 or (any(left) and any(computed) and not all(left)):
            calls.append((new, computed, lengths))
    return FunctionExercise(
        "A step computes query_lens[i] tokens of prompt i, behind num_computed[i] that earlier "
        "steps computed; the prompt has prompt_lens[i]. All rows of the step are in one flat "
        "batch, prompt after prompt. Write last_rows(query_lens, num_computed, prompt_lens): a "
        "list with the row, counted in the batch, that LAST takes of each prompt; None for a "
        "prompt that is not complete.",
        "Where prompt i ends in the batch is the sum of query_lens up to i.",
        _solve_rows,
        calls=calls,
        learnt="that is `last` of minivllm/pooling/methods.py.",
        mistakes={
            "a prompt whose end is not in this step has no vector yet: None.": _rows(waits=False),
            "rows are counted from the batch's first; earlier steps' rows are not in it.": _rows(
                position=True
            ),
            "that is a place within the prompt's own rows; those before it count, too.": _rows(
                flat=False
            ),
            "that is one row too far: it belongs to the next prompt.": _rows(shift=1),
            "that is the first row of each prompt, as CLS takes it.": _rows(first=True),
            "a prompt that is in chunks is complete in the end: add num_computed.": _rows(
                forgets=True
            ),
        },
    )


def _solve_rows():
    def last_rows(query_lens, num_computed, prompt_lens):
        found, end = [], 0
        for new, before, length in zip(query_lens, num_computed, prompt_lens, strict=True):
            end += new
            found.append(end - 1 if before + new == length else None)
        return found

    return last_rows


def _rows(
    waits: bool = True, position: bool = False, flat: bool = True, shift: int = 0,
    first: bool = False, forgets: bool = False,
):  # fmt: skip
    """Make a ``last_rows`` with a mistake."""

    def last_rows(query_lens, num_computed, prompt_lens):
        found = []
        end = 0
        for new, before, length in zip(query_lens, num_computed, prompt_lens, strict=True):
            end += new
            row = (end if flat else new) - 1 + shift + before * position
            complete = (0 if forgets else before) + new == length
            found.append((end - new if first else row) if complete or not waits else None)
        return found

    return last_rows


# -- design: how many to rerank ------------------------------------------------------------------


@seeded(difficulty=4, minutes=12)
def rerank(rng: Random) -> Exercise:
    """The most documents that a cross-encoder can look at in a given number of steps."""
    while True:
        given = {
            "num_documents": rng.choice([1000, 2000, 5000]),
            "query_len": rng.choice([12, 20, 30]),
            "document_len": rng.choice([80, 100, 180]),
            "max_num_batched_tokens": rng.choice([512, 1024, 2048]),
            "max_steps": rng.choice([4, 6, 10]),
        }
        pair = given["query_len"] + given["document_len"]
        room = given["max_steps"] * given["max_num_batched_tokens"]
        known = (room - given["max_num_batched_tokens"]) // pair
        if len({known, room // pair, room // given["document_len"]}) == 3:
            break
    return Exercise(
        _check_rerank,
        "The query's vector takes a step of its own: which documents are nearest is known only "
        "behind it. The other steps can be full.",
        _solve_rerank,
        "Vectors of all documents are kept. For a query, an embedder first embeds the query, in a "
        "step of its own; then a cross-encoder reads the query with each of the k nearest "
        "documents, as one prompt of query_len + document_len tokens. Steps hold up to "
        "max_num_batched_tokens, and prompts may be split. (1) What is the largest k if all is "
        "done in max_steps steps? (2) How many tokens would a cross-encoder compute that reads "
        "all documents? Answer with a pair.",
        given,
    )


def _solve_rerank(num_documents, query_len, document_len, max_num_batched_tokens, max_steps):
    pair = query_len + document_len
    most = (max_steps - 1) * max_num_batched_tokens // pair
    return min(most, num_documents), num_documents * pair


def _check_rerank(
    answer, num_documents, query_len, document_len, max_num_batched_tokens, max_steps
) -> str:
    k, tokens = whole_numbers(answer, ("k", "tokens"))
    pair = query_len + document_len
    room = (max_steps - 1) * max_num_batched_tokens
    most, right = _solve_rerank(
        num_documents, query_len, document_len, max_num_batched_tokens, max_steps
    )
    if 0 < k < most:
        steps = 1 + cdiv(k * pair, max_num_batched_tokens)
        raise NotYet(f"k: {k} take {steps} steps, and more would fit.", f"k: it is {most}.")
    compare(
        k,
        most,
        {
            "k: the query's own step comes first.": max_steps * max_num_batched_tokens // pair,
            "k: each prompt has the query in it, too.": room // document_len,
            "k: that is one step.": max_num_batched_tokens // pair,
        },
        f"k: {k} prompts of {pair} tokens are more than {room}, the room of {max_steps - 1} steps.",
        f"k: it is {most}.",
    )
    compare(
        tokens,
        right,
        {
            "tokens: each prompt has the query in it, too.": num_documents * document_len,
            "tokens: the query is read once with each document.": num_documents * document_len
            + query_len,
            "tokens: these are the k nearest; all documents are asked for.": most * pair,
            "tokens: these are prompts.": num_documents,
        },
        f"tokens: not {tokens:,}. There are {num_documents:,} prompts.",
        f"tokens: it is {right:,}.",
    )
    every = cdiv(right, max_num_batched_tokens)
    return f"{max_steps} steps instead of {every}, if the right one is among the {most} nearest."
