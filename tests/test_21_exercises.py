"""Exercises of notebooks 21 and 22: right solutions from every seed, wrong ones told why."""

from itertools import pairwise

import pytest

from minivllm.exercises import ch21, ch22
from minivllm.lab.exercises.answers import NotYet

SEEDED = [
    ch21.first_tokens, ch21.hang_up, ch21.late_reader, ch22.report, ch22.quantile, ch22.plan,
]  # fmt: skip
NONSENSE = ["x", "", -1, 10**9, [], {}, 2.5, float("nan"), lambda *given: 1, {"A": 1}, [[1], "x"],
            [1, 2, 3, 4], [None.__class__] * 3, True]  # fmt: skip


@pytest.mark.parametrize("make", SEEDED, ids=lambda make: make.__name__)
def test_every_seed_has_a_problem_and_a_solution(make):
    exercises = [make(seed) for seed in range(40)]
    assert len({repr(exercise.given) for exercise in exercises}) == 40
    for exercise in exercises:
        assert exercise.check(exercise.solve())
        for answer in NONSENSE:
            with pytest.raises(NotYet) as caught:
                exercise.check(answer)
            assert str(caught.value).endswith("."), answer
            assert "cannot be read" not in str(caught.value), answer


def test_waiting_in_front_of_a_lock_is_counted_as_the_engine_does():
    exercise = ch21.first_tokens(0)
    locked, together = exercise.solve()
    for wrong, message in (
        ([[n - 1 for n in locked], together], "its own prompt is a step"),
        ([locked, locked], "with two places"),
        ([locked, together[:3]], "four numbers"),
        ([together, together], "with the lock, request 1"),
    ):
        with pytest.raises(NotYet, match=message):
            exercise.check(wrong)


def test_what_a_hang_up_frees_is_what_the_engine_frees():
    """The same world, run: A and B begin together, one is aborted, C comes in."""
    from minivllm.kv.manager import KVCacheManager
    from minivllm.lab.exercises.requests import make_request
    from minivllm.lab.sim.loop import make_scheduler, run_step
    from minivllm.request import RequestStatus

    for seed in range(20):
        given = ch21.hang_up(seed).given
        manager = KVCacheManager(given["usable_blocks"] + 1, given["block_size"], False)
        scheduler = make_scheduler(
            manager, max_num_batched_tokens=10**4, max_num_seqs=4, max_model_len=10**4
        )
        for name in "ABC":
            scheduler.add_request(
                make_request(name, given["prompt_tokens"][name], given["steps"] + 2)
            )
        for _ in range(given["steps"]):
            run_step(scheduler)
        assert [seq.seq_id for seq in scheduler.running] == ["A", "B"]
        before = manager.block_pool.num_free_blocks
        scheduler.finish_requests([given["hangs_up"]], RequestStatus.FINISHED_ABORTED)
        freed = manager.block_pool.num_free_blocks - before
        scheduler.schedule()
        assert "C" in [seq.seq_id for seq in scheduler.running]
        assert ch21.hang_up(seed).check([freed, manager.block_pool.num_free_blocks])


def test_typical_mistakes_with_a_hang_up_are_told():
    found = set()
    for seed in range(40):
        exercise = ch21.hang_up(seed)
        freed, left = exercise.solve()
        given = exercise.given
        prompt = -(-given["prompt_tokens"][given["hangs_up"]] // given["block_size"])
        for wrong in ([prompt, left], [freed + 1, left], [freed, left + 1], [freed, freed + left]):
            if wrong == [freed, left]:
                continue
            with pytest.raises(NotYet) as caught:
                exercise.check(wrong)
            found.add(str(caught.value).split(":")[0][:24])
    assert len(found) >= 4


def test_a_report_tells_which_mean_was_taken():
    exercise = ch22.report(0)
    ttft, tpot, itl = exercise.solve()
    for wrong, message in (
        ([ttft + 17.5, tpot, itl], "from when that request was sent|less the time of sending"),
        ([ttft, itl, itl], "you averaged the gaps"),
        ([ttft, tpot, tpot], "each gap counts once"),
        ([ttft + 1, tpot, itl], "the mean TTFT is not"),
    ):
        with pytest.raises(NotYet, match=message):
            exercise.check(wrong)


def test_the_report_is_the_benchmarks():
    from minivllm.lab.bench.serving.metrics import RequestFuncOutput, calculate_metrics

    exercise = ch22.report(3)
    outputs = []
    for one in exercise.given["requests"].values():
        times = [t / 1000 for t in one["tokens_at"]]
        sent = one["sent"] / 1000
        gaps = [b - a for a, b in pairwise(times)]
        outputs.append(
            RequestFuncOutput(
                sent,
                True,
                output_tokens=len(times),
                ttft=times[0] - sent,
                itl=gaps,
                latency=times[-1] - sent,
            )
        )
    found = calculate_metrics(outputs, 1.0)
    assert [found[f"mean_{name}_ms"] for name in ("ttft", "tpot", "itl")] == pytest.approx(
        exercise.solve()
    )


def test_a_quantile_is_told_which_bucket_and_where_in_it():
    exercise = ch22.quantile(0)
    for wrong, message in ((2.4, "another bucket"), (0.25, "that is a bound"), (0.3, "another pl")):
        with pytest.raises(NotYet, match=message):
            exercise.check(wrong)
