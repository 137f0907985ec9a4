"""Exercises of notebook 24b: prompts of pairs, a search in two stages, how many to rerank."""

from __future__ import annotations

from random import Random

from minivllm.course.asking.answers import NotYet, compare, whole_numbers
from minivllm.course.asking.exercise import Exercise, seeded
from minivllm.course.asking.function_exercise import FunctionExercise
from minivllm.utils.math_utils import cdiv

# -- core: prompts of all pairs ------------------------------------------------------------------


@seeded(difficulty=2, minutes=6)
def pairs(rng: Random) -> Exercise:
    """Prompts and tokens of a bi-encoder and of a cross-encoder, for all pairs."""
    return Exercise(
        _check_pairs,
        "A bi-encoder reads each text once. A cross-encoder reads each query with each document.",
        _solve_pairs,
        "All queries are compared with all documents. All queries are equally long, and so are all "
        "documents. (1) How many prompts does a bi-encoder get, (2) how many does a cross-encoder "
        "get, and (3) how many tokens does the cross-encoder compute, if nothing is cached? Answer "
        "with a triple.",
        {
            "num_queries": rng.randint(3, 40),
            "num_documents": rng.randint(50, 900),
            "query_len": rng.randint(8, 30),
            "document_len": rng.randint(60, 200),
        },
    )


def _solve_pairs(num_queries, num_documents, query_len, document_len):
    num_pairs = num_queries * num_documents
    return num_queries + num_documents, num_pairs, num_pairs * (query_len + document_len)


def _check_pairs(answer, num_queries, num_documents, query_len, document_len) -> str:
    bi, cross, tokens = whole_numbers(answer, ("bi-encoder", "cross-encoder", "tokens"))
    num_texts, num_pairs, right = _solve_pairs(num_queries, num_documents, query_len, document_len)
    read_once = num_queries * query_len + num_documents * document_len
    compare(
        bi,
        num_texts,
        {
            "bi-encoder: pairs are of vectors, and take no pass through the model.": num_pairs,
            "bi-encoder: the queries are embedded, too.": num_documents,
            "bi-encoder: the documents are embedded, too.": num_queries,
        },
        f"bi-encoder: not {bi:,}. Each text is embedded once.",
        f"bi-encoder: it is {num_texts:,}.",
    )
    compare(
        cross,
        num_pairs,
        {
            "cross-encoder: each pair is a prompt of its own.": num_texts,
            "cross-encoder: a pair is one prompt, not two.": 2 * num_pairs,
            "cross-encoder: that is one query.": num_documents,
        },
        f"cross-encoder: not {cross:,}. Each pair is one prompt.",
        f"cross-encoder: it is {num_pairs:,}.",
    )
    compare(
        tokens,
        right,
        {
            "tokens: those are the bi-encoder's; here a text is read in each of its pairs.": (
                read_once
            ),
            "tokens: the query is in each prompt, too.": num_pairs * document_len,
            "tokens: the query is read again with each document.": (
                num_pairs * document_len + num_queries * query_len
            ),
            "tokens: these are prompts.": num_pairs,
        },
        f"tokens: not {tokens:,}. A prompt has {query_len + document_len}.",
        f"tokens: it is {right:,}.",
    )
    return f"{right / read_once:.0f} times the tokens of a bi-encoder."


# -- stretch: a search in two stages -------------------------------------------------------------


@seeded(difficulty=3, minutes=10)
def search(rng: Random) -> FunctionExercise:
    """The order in which a search with vectors and a reranker lists its documents."""
    calls: list[tuple] = []
    while len(calls) < 40:
        num = rng.randint(4, 7)
        cosines = [rng.randint(-20, 99) / 100 for _ in range(num)]
        scores = [rng.randint(1, 99) / 100 for _ in range(num)]
        k = rng.randint(2, num - 1)
        unlike = len(set(cosines)) == len(set(scores)) == num
        if unlike and (len(calls) >= 3 or max(scores) != max(_kept(cosines, scores, k))):
            calls.append((cosines, scores, k))
    return FunctionExercise(
        "cosines[i] tells how near the vector of document i is to the query's, scores[i] what a "
        "cross-encoder would say of it. Write search(cosines, scores, k): the numbers of the k "
        "nearest documents, the one with the best score first. All numbers differ.",
        "First choose with one list, then sort what was chosen with the other.",
        _solve_search,
        calls=calls,
        learnt="only k scores were needed: k prompts, however many documents there are.",
        mistakes={
            "the cross-encoder reads only the k nearest; this one is not among them.": (
                lambda cosines, scores, k: _best_first(range(len(scores)), scores)[:k]
            ),
            "that is the order of the vectors; the scores sort what they have chosen.": (
                lambda cosines, scores, k: _best_first(range(len(cosines)), cosines)[:k]
            ),
            "the best score comes first.": (
                lambda cosines, scores, k: _two_stages(cosines, scores, k)[::-1]
            ),
            "the nearest documents have the largest cosines.": (
                lambda cosines, scores, k: _two_stages([-c for c in cosines], scores, k)
            ),
            "only k documents are listed.": (
                lambda cosines, scores, k: _best_first(range(len(scores)), scores)
            ),
            "these are places among the k nearest; a document's own number is asked for.": (
                lambda cosines, scores, k: _best_first(range(k), _kept(cosines, scores, k))
            ),
        },
    )


def _best_first(documents, numbers: list[float]) -> list[int]:
    return sorted(documents, key=lambda i: -numbers[i])


def _two_stages(cosines: list[float], scores: list[float], k: int) -> list[int]:
    return _best_first(_best_first(range(len(cosines)), cosines)[:k], scores)


def _kept(cosines: list[float], scores: list[float], k: int) -> list[float]:
    """Scores of the k nearest documents, the nearest first."""
    return [scores[i] for i in _best_first(range(len(cosines)), cosines)[:k]]


def _solve_search():
    def search(cosines, scores, k):
        nearest = sorted(range(len(cosines)), key=lambda i: cosines[i], reverse=True)[:k]
        return sorted(nearest, key=lambda i: scores[i], reverse=True)

    return search


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
