"""Problems made from a seed: the same again, fresh ones, right solutions, wrong answers told."""

import re

import numpy
import pytest
from exercise_kinds import KINDS

from minivllm.exercises import ch02, ch03, ch08, ch08b, ch11, ch13, chA1
from minivllm.lab.exercises.answers import NotYet
from minivllm.lab.exercises.ch08 import tokens_found

SEEDS = range(30)
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
    exercises = [make(seed) for seed in SEEDS]
    assert len({repr(exercise.given) for exercise in exercises}) >= FEW.get(name, 20)
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


@pytest.mark.parametrize("blank", [None, ..., [None, None], {"A": ...}, [(1, None, 3)]])
def test_an_exercise_that_is_not_solved_is_no_failure(blank, capsys):
    ch03.translation(3).grade(blank)
    assert capsys.readouterr().out == "not solved yet\n"


def replaced(answer, key, value):
    """The same answer with one entry changed by ``value(old)``."""
    changed = dict(answer) if isinstance(answer, dict) else list(answer)
    changed[key] = value(changed[key])
    return changed


def a_triple(which, by):
    return lambda answer: replaced(answer, 1, lambda t: replaced(t, which, lambda old: old + by))


def off_by(by, key=0):
    return lambda answer: replaced(answer, key, lambda old: old + by)


@pytest.mark.parametrize(
    ("name", "spoil", "explanation"),
    [
        ("ch00.blocks", lambda a: a + 1, "you counted the last token"),
        ("ch00.blocks", lambda a: a - 1, r"\d+ blocks hold \d+ positions; count"),
        ("ch00.steps", lambda a: a - 1, "almost"),
        ("ch00.steps", lambda a: a - 2, "too few"),
        ("ch00.steps", lambda a: a + 90, "too many"),
        ("ch00.pool", lambda a: 5, "at least one sequence of 64 tokens"),
        ("ch00.pool", lambda a: a - 1, r"with \d+ blocks the engine preempts \d+ times"),
        ("ch00.pool", lambda a: a + 1, r"nothing is preempted; \d+ blocks do"),
        ("ch01.bytes_per_token", lambda a: a // 2, "K or V"),
        ("ch01.bytes_per_token", lambda a: a * 5, r"query heads; only the \d K and V heads are"),
        ("ch01.design", lambda a: (a[0], 2 * a[1]), r"that needs \d+ GiB, and \d+ are left"),
        ("ch01.design", lambda a: (1, 1), "twice as much"),
        ("ch01.design", lambda a: (3, 2), "divide 32"),
        ("ch01.design", lambda a: 7, "give a pair"),
        ("ch02.waste", off_by(3, "reserved"), "one per request too many. The last token"),
        ("ch02.waste", off_by(-3, "internal"), "one per request too few. The last token"),
        ("ch02.waste", off_by(5, "internal"), r"internal: you have \d+; the slabs have A \d+, B"),
        ("ch02.waste", off_by(1, "free"), r"free: of \d+ slots, \d+ lie in slabs, so \d+ are free"),
        ("ch02.waste", lambda a: {"tokens": a["tokens"]}, "'reserved' is missing"),
        ("ch02.holes", off_by(1), r"the free slots are \d+ to \d+, .*: that is \d+, not \d+"),
        ("ch02.holes", lambda a: (a[0], a[0]), "are free, but not in one piece: slots"),
        ("ch02.holes", off_by(1, 1), r"no free piece has \d+ slots"),
        ("ch02.holes", off_by(-1, 1), r"\d+ slots fit, but a larger one would, too"),
        ("ch02.reservation", lambda a: ("exact", *a[1:]), "nobody knows how long an answer will"),
        ("ch02.reservation", lambda a: (*a[:2], 20), "max_model_len=20 refuses the request of"),
        ("ch02.reservation", lambda a: ("max", "buddy", 256), r"2 are admitted at once, \d are"),
        ("ch03.translation", a_triple(1, 1), r"block \d+ is right for token (\d+), but its offset "
                                             r"is \1 mod \d+ = \d+, not \d+"),
        ("ch03.translation", a_triple(0, 50), r"entry \d+ // \d+ = \d of the table, which is"),
        ("ch03.translation", a_triple(2, -1), r"its slot is \d+ \* \d+ \+ \d+ = \d+, not \d+"),
        ("ch03.tables", lambda a: replaced(a, "D", lambda t: [90, *t[1:]]),
         r"entry 0 of D's table is block \d+, not 90: when it was needed, the free queue began"),
        ("ch03.tables", lambda a: replaced(a, "D", lambda t: t[:-1]), r"D has \d+ tokens, so it"),
        ("ch03.tables", lambda a: {**a, "Z": [1]}, "'Z' has no table at the end"),
        ("ch03.block_size", lambda a: 64, r"blocks of 64 are too large: [\d.]+% of the held"),
        ("ch03.block_size", lambda a: 1, r"100.0% hold tokens, but blocks of 2 do: [\d.]+%"),
        ("ch04.ref_counts", off_by(1, 1), r"block 1 has positions 0 to \d, and stands in the "
                                          r"tables of A, A/1(, A/\d)*: its count is \d, not \d"),
        ("ch04.ref_counts", lambda a: {b: a[b] for b in a if b != 2}, "block 2 is missing: it has"),
        ("ch04.ref_counts", lambda a: {**a, 90: 1}, r"nobody holds block 90; \d+ blocks are held"),
        ("ch04b.copies", off_by(1), r"step 0 writes (at offset|position) \d+"),
        ("ch04b.copies", lambda a: a[1:], "give 6 numbers, one per step; you have 5"),
        ("ch04.samples", off_by(1, 1), r"\d+ samples are too many: the request can grow to"),
        ("ch04.samples", off_by(-1, 1), r"\d+ samples run, but .* would hold \d+"),
        ("ch04.samples", lambda a: (1, 1), r"with blocks of 1 a table grows to \d+ entries"),
        ("ch05.budget", lambda a: dict.fromkeys(a, 12), "tokens together, and the budget is"),
        ("ch05.budget", lambda a: {}, r"[A-E] gets \d+ tokens, not 0: it wants \d+ - \d+ = \d+"),
        ("ch05.batching", off_by(-1), r"static: \d+ steps are too few\. It takes \d+; by their"),
        ("ch05.batching", off_by(1, 1), r"continuous: \d+ steps are too many"),
        ("ch06.victim", lambda a: [*a, *a], "you name"),
        ("ch06.victim", lambda a: [], r"blocks of [A-D, ]+ are full and 0 are free; the"),
        ("ch06.victim", lambda a: ["Z"], "'Z' does not run"),
        ("ch06b.cost", lambda a: (a[0], a[1] // 2), "blocks: that is one way"),
        ("ch06b.cost", off_by(50), r"tokens: [ABC] had computed \d+"),
        ("ch06b.cost", off_by(1, 1), r"blocks: \d+ hold tokens with K and V and cross twice"),
        ("ch07.chunks", off_by(1), r"chunk 0 is \d+ tokens, not \d+: \d+ are left of the prompt"),
        ("ch07.chunks", lambda a: a[:-1], r"it takes \d+ steps, and you have \d+ chunks"),
        ("ch07.slo", lambda a: 32, r"the TTFT p90 is \d+ ms, \d+ ms are promised: larger steps"),
        ("ch07.slo", lambda a: 4096, r"the ITL p99 is [\d.]+ ms, [\d.]+ ms are promised: smaller"),
        ("ch08.hits", off_by(1, 3), r"\d+ is no multiple of \d; only full blocks count"),
        ("ch08.hits", lambda a: a[1:], "give 6 numbers, one per prompt; you have 5"),
        ("ch08b.shared", off_by(1, 3), r"the fourth prompt has .*: \d+ of its tokens begin an"),
        ("ch08b.shared", lambda a: a[1:], "give 6 numbers, one per prompt; you have 5"),
        ("ch08b.back", lambda a: (0, a[0] + a[1]), "its full blocks keep their hashes"),
        ("ch08b.back", lambda a: (a[0], a[1] - 1), "the last token was sampled, but never comp"),
        ("ch08b.back", off_by(99), r"A ends with \d+ tokens that have K and V, in \d+ blocks"),
        ("ch08b.guesses", lambda a: a // 2, r"guesses each are done after [\d.]+ hours at most"),
        ("ch08b.guesses", lambda a: 2 * a, r"\d+ is enough, but with \d+ it may take [\d.]+ hours"),
        ("ch08b.guesses", lambda a: 3, "give one of the block sizes 1, 2, 4, 8, 16"),
        ("ch08.eviction", lambda a: [0] * 7, r"the \w+ prompt: \d of its tokens are still there"),
        ("ch09.slots", lambda a: a[:3], "4 positions"),
        ("ch09.slots", off_by(1, 3), r"position \d+ is in block \d+, at offset \d+: in slot"),
        ("ch09.batches", lambda a: a[::-1], "the other way round"),
        ("ch09.batches", off_by(1), r"in place, \d+ chats take [\d.]+ ms\."),
        ("ch09.batches", off_by(-1, 1), r"gathered, \d+ chats take [\d.]+ ms; more would fit"),
        ("ch10.loads", lambda a: a[:1], "3 lists, one for each turn"),
        ("ch10.loads", lambda a: replaced(a, 1, lambda one: one[1:]), "turn 1 reads the"),
        ("ch10.loads", lambda a: [1, 2, 3], "list of whole numbers"),
        ("ch10.fill", off_by(-1), r"\d+ chats are \d+ programs for \d+ processors"),
        ("ch10.fill", off_by(-1, 1), r"\d+ tokens are \d+ programs"),
        ("ch10.fill", off_by(1, 1), "fewer would do"),
        ("ch11.merge", lambda a: 10**6, "a weighted mean lies between the two results"),
        ("ch11.splits", lambda a: 1, r"1 ranges take [\d,]+ token times; the best takes [\d,]+"),
        ("ch11.splits", lambda a: 0, "give a number from 1 to 512"),
        ("ch11.partition", lambda a: a // 2, r"partitions of \d+ need [\d,]+ MB, and there are"),
        ("ch11.partition", lambda a: a * 2, r"partitions of \d+ fit, too"),
        ("ch11.partition", lambda a: a + 1, "give a power of two"),
        ("ch13.blocks", lambda a: (a[0] // 2, a[1]), "this is half of it: K and V are both"),
        ("ch13.blocks", lambda a: (a[0] + 1, a[1]), r"a token takes 2 \* \d+ \* \d+ \* \d+ num"),
        ("ch13.blocks", off_by(1, 1), r"\d+ blocks of [\d,]+ bytes are more than [\d,]+ bytes"),
        ("ch13.blocks", off_by(-1, 1), r"\d+ blocks fit, and one more would, too"),
        ("ch13.longest", off_by(-1), r"starts: \d+ tokens have room, and one more has no K and V"),
        ("ch13.longest", off_by(-2), r"starts: \d+ fits, and \d+ would, too"),
        ("ch13.longest", off_by(2), r"starts: \d+ tokens leave \d+ behind; \d+ have room"),
        ("ch13.longest", off_by(1, 1), r"concurrent: with \d+ the log says \d+\.\d+x"),
        ("ch13.longest", off_by(-1, 1), r"concurrent: with \d+ the log says \d+\.\d+x"),
        ("ch13.gpu", lambda a: ("S", a[1]), r"S is too small: \d+\.\d+x with steps of 2048"),
        ("ch13.gpu", lambda a: ("XL", a[1]), "XL keeps the promise, but a cheaper one does, too"),
        ("ch13.gpu", lambda a: (a[0], 2048), r"keeps the promise with steps of 4096 tokens, too"),
        ("ch13.gpu", lambda a: (a[0], 100), "max_num_batched_tokens is one of 2048, 4096"),
        ("chA1.ridge", off_by(1), r"ridge: in the time of one byte it can do [\d,]+ / [\d,]+ oper"),
        ("chA1.ridge", off_by(-1, 1), r"with \d+ there are \d+ operations for the \d bytes of a"),
        ("chA1.ridge", lambda a: (a[0], 2 * a[1]), "a product and a sum are two operations"),
        ("chA1.ridge", off_by(1, 1), r"batch: (\d+) is bound by arithmetic, and \d+ would be, too"),
        ("chA1.attention", lambda a: (a[0] // 2, a[1]), "operations: this is half of it"),
        ("chA1.attention", off_by(1), r"a query head needs 4 \* head_dim for a token"),
        ("chA1.attention", lambda a: (a[0], a[1] // 2), "K is read, and V as well"),
        ("chA1.attention", off_by(1, 1), r"batch \* context tokens, K and V of each"),
        ("chA2.passes", lambda a: (a[1], a[1]), "apart: there are more than 4 passes"),
        ("chA2.passes", lambda a: (a[0], a[0]), "fused: there are fewer than 5 passes"),
        ("chA2.passes", lambda a: (a[0], a[1] + 1), "fused: this is not a multiple of"),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_told_what_is_wrong(name, spoil, explanation):
    exercise = KINDS[name](1)
    with pytest.raises(NotYet) as caught:
        exercise.check(spoil(exercise.solve()))
    assert re.search(explanation, caught.value.value or str(caught.value))


def test_a_first_miss_names_the_entry_and_a_second_its_value(capsys):
    exercise = ch03.translation(11)
    (block, offset, slot), *rest = exercise.solve()
    for _ in range(2):
        exercise.grade([(block, offset, slot + 1), *rest])
        ch03.translation(11).grade([(block + 50, offset, slot), *rest])
    first, entry, second, value = capsys.readouterr().out.splitlines()
    assert first.endswith(
        f"its slot is not {slot + 1}. (If you miss it again, the value is shown.)"
    )
    assert second.endswith(f"+ {offset} = {slot}, not {slot + 1}.")
    assert f"is not in block {block + 50}." in entry
    assert f"of the table, which is block {block}" in value
    ch03.translation(12).grade([(0, 0, 0)] * 3)  # another problem is missed for the first time
    assert "If you miss it again" in capsys.readouterr().out


def test_the_last_token_is_never_found():
    exercise = next(
        e for e in map(ch08.hits, SEEDS) if len(e.given["prompts"][1]) == 3 * e.given["block_size"]
    )
    answer, full = exercise.solve(), len(exercise.given["prompts"][1])
    with pytest.raises(NotYet, match="one token must be computed to have logits"):
        exercise.check([answer[0], full, *answer[2:]])


def test_a_hit_under_another_salt_is_no_hit():
    exercise = ch08b.shared(0)
    unsalted = tokens_found(exercise.given["prompts"], exercise.given["block_size"], 200)
    with pytest.raises(NotYet, match="would be found if all salts were equal, but no earlier"):
        exercise.check(unsalted)


def test_a_students_number_is_a_seed():
    mine, again, theirs = (ch03.translation(seed=s) for s in ("20260123", "20260123", "20260124"))
    assert mine.given == again.given != theirs.given
    assert mine.given == ch03.translation(seed=20260123).given
    assert mine.check(mine.solve())
    assert mine.effort.endswith("Then without help: ch03.translation(seed='20260123b').")
    for wrong in (-1, 1.5, "a b", "\ud800", None, True):
        with pytest.raises(ValueError, match="seed must be an integer of at least 0, or letters"):
            ch03.translation(seed=wrong)


def test_integers_of_other_libraries_are_whole_numbers():
    exercise = ch02.holes(2)
    free, largest = exercise.solve()
    assert exercise.check((numpy.int64(free), numpy.int32(largest)))
    with pytest.raises(NotYet, match="give 2 whole numbers"):
        exercise.check((float(free), numpy.float32(largest)))


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


def test_of_equally_fast_splits_the_smallest_is_asked_for():
    """While the merge's own length grows with the parts, two numbers may still tie."""
    for seed in SEEDS:
        exercise = ch11.splits(seed)
        given = exercise.given
        programs = given["num_seqs"] * given["num_kv_heads"]
        batch = programs, given["seq_len"], given["num_processors"]
        times = [ch11.token_times(n, *batch) for n in range(1, 513)]
        assert times.index(min(times)) + 1 == exercise.solve()


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


def test_the_null_block_holds_no_token():
    exercise = ch13.longest(1)
    _, concurrent = exercise.solve()
    everything = exercise.given["num_blocks"] * exercise.given["block_size"]
    with pytest.raises(NotYet, match="block 0 is the null block"):
        exercise.check((everything, concurrent))


def test_heads_that_share_a_kv_head_have_their_own_operations_and_share_its_bytes():
    exercise = chA1.attention(1)
    operations, num_bytes = exercise.solve()
    group = exercise.given["num_heads"] // exercise.given["num_kv_heads"]
    with pytest.raises(NotYet, match=r"every one of the \d+ query heads has its own"):
        exercise.check((operations // group, num_bytes))
    with pytest.raises(NotYet, match=f"{group} query heads share a KV head"):
        exercise.check((operations, num_bytes * group))
    learnt = exercise.check((operations, num_bytes))
    assert learnt.startswith(f"{operations / num_bytes:g} operations per byte")


@pytest.mark.parametrize("bound", ["arithmetic", "bandwidth"])
def test_the_usual_ways_to_miss_the_roof_are_told_apart(bound):
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
        (batch / (right * 1.5), "are above the roof"),
        (batch / (right * 0.9), "are below the roof"),
    ]:
        with pytest.raises(NotYet, match=told):
            exercise.check(round(batch / seconds))
    for share in (0.995, 1.005):
        assert exercise.check(round(right * share))
