"""Every solution passes its check, and the usual wrong answers are told what is wrong."""

import html
import textwrap

import pytest
from exercise_kinds import KINDS

from minivllm.exercises import ch01, ch05, ch06, ch07, ch08, ch09, ch10, chA2
from minivllm.lab.exercises.answers import NotYet, compare
from minivllm.lab.exercises.puzzle import METRICS, Puzzle
from minivllm.scheduling.policies import FCFSPolicy, SchedulingPolicy

PUZZLES = {name: kind for name, kind in KINDS.items() if isinstance(kind(0), Puzzle)}


@pytest.mark.parametrize("name", KINDS)
def test_the_solution_is_right(name, capsys):
    exercise = KINDS[name](0)
    exercise.grade(exercise.solve())
    exercise.grade(None)
    right, unsolved = capsys.readouterr().out.splitlines()
    assert right.startswith("right: ")
    assert unsolved == "not solved yet"
    shown = exercise.show_help()._repr_mimebundle_()["text/html"]
    assert shown.count("<details>") == 2
    assert html.escape(exercise.hint) in shown
    assert 25 <= len(exercise.why.split()) <= 100
    assert html.escape("\n".join(textwrap.wrap(exercise.why, 90))) in shown
    assert exercise.solution.__name__ in shown


def norm(x):
    return (x**2).sum(-1, keepdims=True) ** 0.5


@pytest.mark.parametrize(
    ("kind", "answer", "explanation"),
    [
        (ch01.work, lambda p, n, k: p + n, "is not"),
        (ch01.work, lambda p, n, k: 2 * p + n - 1, "before the loss, too"),
        (ch01.work, lambda p: p, "raised TypeError"),
        (ch09.blocks_read, lambda table, size, n, window: table, "is not"),
        (ch09.blocks_read, lambda table: table, "raised TypeError"),
        (ch10.program_reads, lambda table, *case: table, "is not"),
        (ch10.program_reads, lambda table: table, "raised TypeError"),
        (chA2.add_norm, 3, "give a function"),
        (chA2.add_norm, lambda x: x, "raised TypeError"),
        (chA2.add_norm, lambda x, r, w, eps: x, "does not hold the sum"),
        (chA2.add_norm, lambda x, r, w, eps: r.__iadd__(x), "output[0, 0] is wrong"),
        (chA2.add_norm, lambda x, r, w, eps: r.__iadd__(x) / norm(r) * w, "not of their mean"),
        (chA2.add_norm, lambda x, r, w, eps: r.__iadd__(x) / norm(r) * len(w) ** 0.5, "weight is"),
        (chA2.add_norm, lambda x, r, w, eps: x.__iadd__(r), "x was changed"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_wrong_function_is_told_why(kind, seed, answer, explanation, capsys):
    kind(seed).grade(answer)
    out = capsys.readouterr().out
    assert out.startswith("not yet: ")
    assert explanation in out


def test_a_seed_calls_a_function_with_other_arguments(capsys):
    first, second = ch01.work(0), ch01.work(1)
    known = {call: first.solve()(*call) for call in first.calls}
    by_heart = known.__getitem__
    first.grade(lambda *call: by_heart(call))
    second.grade(lambda *call: by_heart(call))
    right, raised = capsys.readouterr().out.splitlines()
    assert right.startswith("right: ")
    assert f"work{second.given['first_calls'][0]} raised KeyError" in raised


class Stubborn(SchedulingPolicy):
    """Admits no request, ever."""

    def may_admit(self, running):
        return False


class Broken(SchedulingPolicy):
    """Counts something that a request does not have."""

    def key(self, request):
        return request.length


def test_there_are_puzzles_in_four_chapters():
    assert {name.split(".")[0] for name in PUZZLES} == {"ch05", "ch06", "ch07", "ch08"}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", PUZZLES)
def test_a_puzzle_asks_for_more_than_the_default(name, seed):
    """The default misses a target, the solution none, and the check says by how much."""
    puzzle = PUZZLES[name](seed)
    targets = puzzle.given["targets"]
    default, solved = puzzle.run(), puzzle.run(puzzle.solve())
    assert any(METRICS[metric](default) > most for metric, most in targets.items())
    assert all(METRICS[metric](solved) <= most for metric, most in targets.items())
    with pytest.raises(NotYet, match=r"is [\d.]+, at most [\d.]+ is asked for"):
        puzzle.check({})


@pytest.mark.parametrize(
    ("puzzle", "answer", "explanation"),
    [
        (ch05.puzzle(0), FCFSPolicy, "mean_finish is 16.5, at most 12.2 is asked for."),
        (
            ch05.puzzle(0),
            Stubborn,
            "scheduling_policy Stubborn admits no request: 6 unfinished",
        ),
        (ch05.puzzle(0), Broken(), "AttributeError: 'Request' object has no attribute 'length'"),
        (ch05.puzzle(0), "shortest first", "give a SchedulingPolicy, or a dict with policy"),
        (ch05.puzzle(0), {"policy": 3}, "scheduling_policy must be one of"),
        (
            ch05.puzzle(0),
            {"max_num_seqs": 6},
            "'max_num_seqs' is not yours to change; policy may be",
        ),
        (ch06.puzzle(0), FCFSPolicy, "computed_tokens is 117"),
        (ch06.fit(0), {}, "peak_blocks is 16, at most 8 is asked for."),
        (ch06.fit(0), {"num_blocks": 9}, "steps is 23, at most 22 is asked for."),
        (ch06.fit(0), {"num_blocks": 4}, "the whole KV cache holds 3"),
        (ch06.fit(0), {"num_blocks": 0}, "num_blocks must be at least 2"),
        (ch06.fit(0), {"num_blocks": "ten"}, "num_blocks is a whole number from 0 to 10,000, not"),
        (ch07.puzzle(0), {"max_num_batched_tokens": 23}, "mean_finish is 17.2"),
        (ch07.puzzle(0), {"long_prefill_token_threshold": 8}, "slowest_first_token is 9"),
        (ch08.puzzle(0), FCFSPolicy, "computed_tokens is 87"),
    ],
)
def test_a_puzzle_says_what_is_missed(puzzle, answer, explanation):
    with pytest.raises(NotYet) as caught:
        puzzle.check(answer)
    assert explanation in str(caught.value)


def test_a_wrong_answer_is_told_the_first_mistake_that_leads_to_it():
    compare(6, 6, {"doubled": 6}, "wrong")  # right comes first
    mistakes = {"halved": 3, "also halved": 3, "doubled": 12}
    for answer, told, value in ((3, "halved", None), (12, "doubled", None), (7, "wrong", "6")):
        with pytest.raises(NotYet, match=f"^{told}$") as caught:
            compare(answer, 6, mistakes, "wrong", "6")
        assert caught.value.value == value
    with pytest.raises(NotYet, match="doubled"):
        compare(12.1, 6, mistakes, "wrong", same=lambda got, right: abs(got - right) < 0.2)
