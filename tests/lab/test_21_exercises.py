"""Exercises of notebooks 21, 21b and 22: right solutions from every seed, wrong ones told why."""

import asyncio
from itertools import pairwise

import pytest

from minivllm.course.asking.answers import NotYet
from minivllm.exercises import ch21, ch21b, ch22

SEEDED = [
    ch21.event_loop, ch21.first_tokens, ch21.hang_up, ch21b.whole_events, ch21b.late_reader,
    ch21b.read_events, ch22.report, ch22.quantile, ch22.plan,
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


class VirtualClock(asyncio.SelectorEventLoop):
    """An event loop whose time passes where a test says so, and where the loop would wait."""

    now = 0.0

    def time(self):
        return self.now

    def _run_once(self):
        if not self._ready and self._scheduled:
            self.now = max(self.now, self._scheduled[0].when())
        super()._run_once()


def test_coroutines_end_when_asyncio_says_so():
    for seed in range(20):
        exercise = ch21.event_loop(seed)
        loop = VirtualClock()
        ends = {}

        async def run(name, first, timer, last, loop=loop, ends=ends):
            loop.now += first
            await asyncio.sleep(timer)
            loop.now += last
            ends[name] = loop.now

        async def all_of_them(coroutines=exercise.given["coroutines"], run=run):
            await asyncio.gather(*(run(name, *parts) for name, parts in coroutines.items()))

        loop.run_until_complete(all_of_them())
        loop.close()
        assert [round(ends[name]) for name in ("ada", "ben", "cleo")] == exercise.solve()


def test_who_forgets_the_loops_other_work_is_told():
    for seed in range(20):
        exercise = ch21.event_loop(seed)
        alone = [sum(parts) for parts in exercise.given["coroutines"].values()]
        with pytest.raises(NotYet, match=r"own time|was busy"):
            exercise.check(alone)
        firsts = [first for first, _, _ in exercise.given["coroutines"].values()]
        undisturbed = [sum(firsts[:i]) + own for i, own in enumerate(alone)]
        with pytest.raises(NotYet, match=r"own time|was busy"):
            exercise.check(undisturbed)


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
    from minivllm.course.asking.requests import make_request
    from minivllm.kv.manager import KVCacheManager
    from minivllm.lab.sim.loop import run_step
    from minivllm.lab.sim.make import make_scheduler
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


def test_an_event_that_has_begun_is_not_whole():
    exercise = ch21b.whole_events(0)
    right, pieces = exercise.solve(), exercise.given["pieces"]
    begun = [b"".join(pieces[: i + 1]).count(b"data:") for i in range(len(pieces))]
    new = [after - before for before, after in pairwise([0, *right])]
    for wrong, message in (
        (begun, "have begun, and the last one is not whole"),
        (new, "count all so far"),
        (right[:-1], "give as many numbers"),
        ([right[0] + 5, *right[1:]], f"after piece 0: not {right[0] + 5} events"),
    ):
        with pytest.raises(NotYet, match=message):
            exercise.check(wrong)


def whole(pieces):
    """All events of a stream, [DONE] included."""
    *events, _ = b"".join(pieces).decode().split("\n\n")
    return [event.removeprefix("data: ") for event in events]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (whole, r"\[DONE\] ends the stream"),
        (lambda pieces: [f"data: {text}" for text in whole(pieces)[:-1]], "before the data of"),
        (lambda pieces: whole(pieces)[:-2], r"event \d, '.*', is lost"),
        (lambda pieces: [text.encode() for text in whole(pieces)], "returns a list of strings"),
        (lambda pieces: [piece.decode() for piece in pieces], "raised UnicodeDecodeError"),
    ],
)
def test_a_client_that_cuts_events_is_told(wrong, message):
    exercise = ch21b.read_events(2)
    exercise.calls.insert(0, ([b"data: caf\xc3", b"\xa9\n\ndata: 4.\n\ndata: [DONE]\n\n"],))
    with pytest.raises(NotYet, match=message):
        exercise.check(wrong)
    assert exercise.check(lambda pieces: whole(pieces)[:-1])


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
