"""Problems made from a seed: the same again, fresh ones, right solutions, wrong answers told."""

import numpy
import pytest
from exercise_kinds import KINDS
from helpers import AT_NIGHT
from hostile import HOSTILE, ITSELF, ITSELF_AS_DICT

from minivllm.course.asking.answers import NotYet
from minivllm.exercises import ch02, ch03, ch11, ch13, chA1
from minivllm.lab.contiguous.slab_pool import FirstFitPool

SEEDS = range(30)
SOME = SEEDS if AT_NIGHT else range(10)  # all of them at night
FEW = {"ch16.promises": 12}  # all that there are, but a few that the seeds do not meet

NONSENSE = [
    "x", "ABC", "", 3.5, float("nan"), -1, 0, 10**9, True, [], {}, (), object(), int, (1,), (1, 2),
    [1, 2, 3], [[1]], [[1, 2, 3]] * 3, ["x"] * 3, ["A"], [("A", 1)], lambda *given: 1, {1: 2},
    {"A": 1}, {"A": [1]}, {"A": "x"}, {"A": ["x"]}, {"A": [10**9]}, {(1,): 1}, {1, 2},
    ("max", "buddy", 0), ("max", "buddy", 10**6), ("max", [], 90), (0, 0), (8, 10**9),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_seed_has_a_problem_of_its_own_and_the_solution_is_right(name):
    make = KINDS[name]
    exercises = [make(seed) for seed in SOME]
    different = {repr(exercise.given) for exercise in exercises}
    assert len(different) >= FEW.get(name, 20) * len(SOME) // len(SEEDS)
    assert exercises[0].given != exercises[1].given
    for exercise in exercises:
        assert exercise.check(exercise.solve())


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_the_same_seed_gives_the_same_problem(name):
    make = KINDS[name]
    for seed in (0, 7):
        assert make(seed).given == make(seed).given
        assert make(seed).check(make(seed).solve()) == make(seed).check(make(seed).solve())
    assert make().given == make(0).given
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, or letters and"):
        make("")


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_whatever_the_answer_is_it_gets_a_sentence(name, capsys):
    exercise = KINDS[name](1)
    assert repr(exercise).startswith(exercise.question[:20])
    right = exercise.solve()
    for answer in NONSENSE:
        if answer == right:
            continue
        with pytest.raises(NotYet) as caught:
            exercise.check(answer)
        for told in (str(caught.value), caught.value.value or "."):
            assert told.endswith("."), answer
            assert "cannot be read" not in told, answer
        exercise.grade(answer)
        exercise.grade(answer)
        printed = capsys.readouterr().out.splitlines()
        assert [line[:9] for line in printed] == ["not yet: "] * 2, answer
        assert printed[1] == f"not yet: {caught.value.value or caught.value}"
    with pytest.raises(NotYet, match=r"give|is missing|cannot be read"):
        exercise.check(numpy.array([[1, 2], [3, 4]]))


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_no_answer_is_too_strange(name, capsys):
    exercise = KINDS[name](0)
    for answer in HOSTILE:
        with pytest.raises(NotYet) as caught:
            exercise.check(answer)
        assert str(caught.value).endswith(".")
        loop = answer is ITSELF_AS_DICT or answer is ITSELF
        assert loop or "cannot be read" not in str(caught.value)
        exercise.grade(answer)
        out = capsys.readouterr().out
        assert "not yet: " in out or out.endswith("not solved yet\n")


@pytest.mark.parametrize("blank", [None, ..., [None, None], {"A": ...}, [(1, None, 3)]])
def test_an_exercise_that_is_not_solved_is_no_failure(blank, capsys):
    ch03.translation(3).grade(blank)
    assert capsys.readouterr().out == "not solved yet\n"


def test_a_first_miss_names_the_entry_and_a_second_its_value(capsys):
    exercise = ch03.translation(11)
    (block, offset, slot), *rest = exercise.solve()
    for _ in range(2):
        exercise.grade([(block, offset, slot + 3), *rest])
        ch03.translation(11).grade([(block + 50, offset, slot), *rest])
    first, entry, second, value = capsys.readouterr().out.splitlines()
    assert first.endswith(
        f"its slot is not {slot + 3}. (If you miss it again, the value is shown.)"
    )
    assert second.endswith(f"+ {offset} = {slot}, not {slot + 3}.")
    assert f"is not in block {block + 50}." in entry
    assert f"of the table, which is block {block}" in value
    ch03.translation(12).grade([(50, 0, 0)] * 3)  # another problem is missed for the first time
    assert "If you miss it again" in capsys.readouterr().out


def test_a_students_number_is_a_seed():
    mine, again, theirs = (ch03.translation(seed=s) for s in ("20260123", "20260123", "20260124"))
    assert mine.given == again.given != theirs.given
    assert mine.given == ch03.translation(seed=20260123).given
    assert mine.check(mine.solve())
    assert mine.effort.endswith("Then without help: ch03.translation(seed='20260123b').")
    for wrong in (-1, 1.5, "a b", "\ud800", None, True):
        with pytest.raises(ValueError, match="seed must be an integer of at least 0, or letters"):
            ch03.translation(seed=wrong)


@pytest.mark.parametrize("like", [float, numpy.int64, numpy.int32, numpy.float32])
def test_a_whole_number_of_another_type_is_right_too(like):
    exercise = ch13.blocks(2)
    assert exercise.check(tuple(map(like, exercise.solve())))
    per_token, num_blocks = exercise.solve()
    with pytest.raises(NotYet, match="give 2 whole numbers"):
        exercise.check((per_token + 0.5, num_blocks))


def test_holes_are_those_of_the_pool():
    for num_slots, slabs, left in ch02.holes(2).calls:
        pool = FirstFitPool(num_slots)
        held = {name: pool.allocate(size) for name, size in slabs.items()}
        for name in left:
            pool.free(held[name])
        free, largest = ch02.holes(2).solve()(num_slots, slabs, left)
        assert free == pool.num_free_blocks
        assert pool.can_allocate(largest)
        assert not pool.can_allocate(largest + 1)


def test_the_wrong_ways_to_merge_are_told_apart():
    told = set()
    for seed in SEEDS:
        exercise = ch11.merge(seed)
        (low, high), lengths = exercise.given["results"], exercise.given["lengths"]
        right = exercise.solve()
        assert low < right < high
        wrong = {
            "mean of the results": (low + high) // 2,
            "weigh by length": round((lengths[0] * low + lengths[1] * high) / sum(lengths)),
            "changed over": low + high - right,
        }
        for explanation, answer in wrong.items():
            with pytest.raises(NotYet) as caught:
                exercise.check(answer)
            told |= {explanation} & {e for e in wrong if e in str(caught.value)}
    assert told == set(wrong)


def test_the_fastest_split_is_the_smallest_of_the_fastest():
    exercise = ch11.splits(0)
    for seqs, heads, *batch in exercise.calls:
        times = [ch11.token_times(n, seqs * heads, *batch) for n in range(1, 513)]
        assert times.index(min(times)) + 1 == exercise.solve()(seqs, heads, *batch)


def test_a_token_is_not_counted_by_query_heads_layers_or_numbers():
    exercise = ch13.blocks(1)
    (right, num_blocks), given = exercise.solve(), exercise.given
    for per_token, told in [
        (right * given["num_heads"] // given["num_kv_heads"], "query heads keep nothing"),
        (right // given["num_layers"], "this is one layer"),
        (right // given["bytes_per_number"], "this many numbers|this is half of it"),
    ]:
        with pytest.raises(NotYet, match=told):
            exercise.check((per_token, num_blocks))
    with pytest.raises(NotYet, match=r"\d+ tokens fit; a block has \d+ of them"):
        exercise.check((right, given["kv_cache_gib"] * 2**30 // right))


@pytest.mark.parametrize("bound", ["arithmetic", "bandwidth"])
def test_the_usual_ways_to_miss_the_roofline_are_told_apart(bound):
    """Tokens per second of a step that forgets something, or counts it too often."""
    exercises = (chA1.at_most(seed) for seed in range(99))
    exercise = next(e for e in exercises if e.check(e.solve()).startswith(f"bound by {bound}"))
    given, right = exercise.given, exercise.solve()
    batch, gb_per_s = given["batch"], given["gb_per_s"]
    weights = 2 * given["num_params"] / 1e9 / gb_per_s
    kv = batch * given["context"] * 131_072 / 1e9 / gb_per_s
    operations = 2 * given["num_params"] + 4 * 32 * 32 * 128 * given["context"]
    computing = batch * operations / (given["tflop_per_s"] * 1e12)
    other = computing if bound == "bandwidth" else weights + kv
    for seconds, told in [
        (batch * batch / right, "this is one sequence's"),
        (weights, "not only the weights"),
        (weights + 4 * kv, "for each KV head, not for each query head"),
        (batch * weights + kv, "the weights are read once for the whole batch"),
        (other, f"this is what {'arithmetic' if bound == 'bandwidth' else 'bandwidth'} allows"),
        (weights + kv + computing, "take the longer, not their sum"),
        (batch / (right * 1.5), "above the roofline"),
        (batch / (right * 0.9), "more is possible"),
    ]:
        with pytest.raises(NotYet, match=told):
            exercise.check(round(batch / seconds))
    for share in (0.995, 1.005):
        assert exercise.check(round(right * share))
