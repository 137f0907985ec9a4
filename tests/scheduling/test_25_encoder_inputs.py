"""Items such as pictures in the scheduler: what is encoded, kept, evicted, and never missing."""

import random
from collections import Counter
from concurrent.futures import Future
from contextlib import suppress

import pytest
from helpers import assert_decides_as, examples, make_scheduler, request
from hypothesis import example, given
from hypothesis import strategies as st

from minivllm import SamplingParams
from minivllm.config import SchedulerConfig
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.loop import run_steps
from minivllm.lab.sim.recordings import MULTIMODAL_GOLDEN, load_recording
from minivllm.lab.sim.replay import replay
from minivllm.lab.sim.replay_encoder import encoder_limits, read_items
from minivllm.lab.sim.stub_runner import StubRunner
from minivllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from minivllm.request import Request, RequestStatus
from minivllm.scheduling.async_scheduler import AsyncScheduler
from minivllm.scheduling.batch_queue import BatchQueue
from minivllm.scheduling.encoder_inputs import EncoderInputs
from minivllm.scheduling.output import SchedulerOutput
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace
from minivllm.trace.records import ItemEncoded, ItemEvicted, Preempted, SwappedOut

PLACEHOLDER = 4
EXHIBIT = MULTIMODAL_GOLDEN[0].with_name("exhibit_m044_fam28.json.gz")


def with_items(name, *parts, max_tokens=4, **kwargs):
    """A request; a part is text of a length, or an item: its name and length, perhaps a mask."""
    prompt, features = [], []
    for part in parts:
        if isinstance(part, int):
            prompt += [9] * part
            continue
        identifier, length, *mask = part
        place = PlaceholderRange(len(prompt), length, *mask)
        features.append(MultiModalFeatureSpec(None, "image", identifier, place))
        prompt += [PLACEHOLDER] * length
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, n=kwargs.pop("n", 1))
    return Request(name, prompt, params, mm_features=features, **kwargs)


def make(budget=64, encoder=40, cache=40, **kwargs):
    sizes = {"max_num_encoder_input_tokens": encoder, "encoder_cache_size": cache}
    return make_scheduler(budget=budget, **sizes, **kwargs)


def steps(scheduler, *requests):
    """Plans of requests that come together, executed by a runner that must not miss an output."""
    runner = StubRunner()

    def execute(scheduler, plan):
        return runner.execute(plan)

    for step in run_steps(scheduler, requests, execute):
        scheduler.check_integrity()
        yield step.scheduler_output


# -- what vLLM decides ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", MULTIMODAL_GOLDEN, ids=lambda p: p.name.split(".")[0])
def test_decides_what_vllm_decides(path):
    """Items encoded, outputs forgotten, references and the order of eviction, step by step."""
    assert_decides_as(path)


def test_a_victims_item_is_encoded_if_another_counts_on_it():
    """In this recording vLLM takes it out of the plan, and its own runner would miss it."""
    golden = load_recording(EXHIBIT)
    (number,) = [step["step"] for step in golden["steps"] if "withdrawn_encoder" in step]
    ((victim, index),) = golden["steps"][number]["withdrawn_encoder"]
    ours = replay({"config": golden["config"], "requests": golden["requests"]})
    want, got = golden["steps"][number], ours["steps"][number]
    assert got["encoder"] == {victim: [index], **want["encoder"]}
    assert victim in got["preempted"]
    # nothing is missing, and but for that encoding all is decided as it was
    config = golden["config"]
    names = ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "policy")
    limits = {name: config[name] for name in names}
    manager = KVCacheManager(config["num_gpu_blocks"], config["block_size"])
    scheduler = Scheduler(SchedulerConfig(**limits, **encoder_limits(config)), manager)
    requests = [
        Request(
            entry["id"],
            entry["prompt_token_ids"],
            SamplingParams(max_tokens=entry["max_tokens"], ignore_eos=True),
            arrival_time=entry["arrival_step"],
            priority=entry["priority"],
            mm_features=read_items(entry),
        )
        for entry in golden["requests"]
    ]
    assert len(list(steps(scheduler, *requests))) == len(golden["steps"])
    for want, got in zip(golden["steps"], ours["steps"], strict=True):
        want.pop("withdrawn_encoder", None)
        if want["step"] != number:
            assert got == want


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offset": -1}, r"requests\[0\]\['mm'\]\[0\]\['offset'\]"),
        ({"length": 99}, r"\['length'\]"),
        ({"length": 0}, r"\['length'\]"),
        ({"is_embed": [1]}, r"\['is_embed'\]"),
        ({"is_embed": [2, 1, 1, 1]}, r"\['is_embed'\]"),
        ({"hash": 7}, r"\['hash'\]"),
        ({"hash": None}, r"\['hash'\]"),
    ],
)
def test_a_replay_names_the_item_that_is_wrong(change, message):
    config = load_recording(MULTIMODAL_GOLDEN[0])["config"]
    item = {"hash": "a", "offset": 0, "length": 4} | change
    entry = {"id": "a", "arrival_step": 0, "prompt_token_ids": [4] * 5, "max_tokens": 1}
    with pytest.raises(ValueError, match=message):
        replay({"config": config, "requests": [{**entry, "mm": [item]}]})
    text = {key: value for key, value in config.items() if "encoder" not in key}
    fine = {"hash": "a", "offset": 0, "length": 4}
    with pytest.raises(ValueError, match="encoder_cache_size"):
        replay({"config": text, "requests": [{**entry, "mm": [fine]}]})


# -- the rules, one at a time --------------------------------------------------------------------


def test_an_item_is_encoded_whole_in_the_step_of_its_first_embedding():
    plans = steps(make(budget=8), with_items("a", 6, ("cat", 12), 3))
    encoded = [(p.num_scheduled_tokens["a"], p.scheduled_encoder_inputs.get("a")) for p in plans]
    assert encoded[:4] == [(8, [0]), (8, None), (5, None), (1, None)]


def test_a_chunk_ends_before_an_item_that_the_budget_cannot_encode():
    """The next step has a new budget; another running request is not held up."""
    plans = list(steps(make(encoder=12), with_items("a", 2, ("cat", 10), 2, ("dog", 10), 2)))
    assert [p.num_scheduled_tokens["a"] for p in plans[:2]] == [14, 12]
    assert [p.scheduled_encoder_inputs for p in plans[:2]] == [{"a": [0]}, {"a": [1]}]


def test_a_running_request_that_must_wait_is_passed_over_and_a_waiting_one_ends_admission():
    """Each step encodes one picture here."""
    plans = steps(
        make(encoder=10),
        with_items("a", 2, ("cat", 10)),
        with_items("b", 2, ("dog", 10)),
        with_items("c", 2, ("cow", 10)),
        with_items("d", 3),
        with_items("e", ("hen", 10), arrival_time=1),
        with_items("f", 3, arrival_time=1),
    )
    first, second, third, *_ = plans
    assert first.num_scheduled_tokens == {"a": 12, "b": 2, "c": 2, "d": 3}
    assert second.num_scheduled_tokens == {"a": 1, "b": 10, "d": 1}
    assert third.num_scheduled_tokens == {"a": 1, "b": 1, "c": 10, "d": 1}


def test_one_token_of_a_prompt_needs_its_item_too():
    plans = list(steps(make(budget=1), with_items("a", 1, ("cat", 2), 1, max_tokens=1)))
    assert [p.scheduled_encoder_inputs for p in plans] == [{}, {"a": [0]}, {}, {}]


def test_outputs_are_kept_until_their_room_is_needed():
    scheduler = make(cache=20)
    items = ["cat", "dog", "cat", "cow", "dog", "cat"]
    one_by_one = [
        with_items(str(time), 2, (item, 10), max_tokens=1, arrival_time=time)
        for time, item in enumerate(items)
    ]
    plans = list(steps(scheduler, *one_by_one))
    encoded = [list(plan.scheduled_encoder_inputs) for plan in plans]
    assert encoded == [["0"], ["1"], [], ["3"], ["4"], ["5"]]
    freed = [plan.free_encoder_mm_hashes for plan in plans]
    assert freed == [[], [], [], ["dog"], ["cat"], ["cow"]]


def test_what_is_evicted_and_made_again_in_one_plan_is_not_told():
    scheduler = make(cache=10)
    scheduler.encoder_inputs.cache.freed.append("cat")
    (plan, *_) = steps(scheduler, with_items("a", ("cat", 10)))
    assert plan.scheduled_encoder_inputs == {"a": [0]}
    assert plan.free_encoder_mm_hashes == []


def test_an_item_at_several_places_is_dropped_with_the_last_of_them():
    scheduler = make(budget=12)
    cache = scheduler.encoder_inputs.cache
    cached = []
    for _ in steps(scheduler, with_items("a", ("cat", 10), 1, ("cat", 10), 1, max_tokens=1)):
        cached.append((sorted(cache.cached["cat"]), list(cache.freeable)))
    assert cached == [(["a"], []), ([], ["cat"])]


def test_breaks_between_rows_need_no_output_and_take_no_room():
    mask = (False, True, True, False)
    scheduler = make(budget=3, encoder=2, cache=2)
    plans = list(steps(scheduler, with_items("a", 2, ("cat", 4, mask), max_tokens=1)))
    assert [p.scheduled_encoder_inputs for p in plans] == [{}, {"a": [0]}]
    place = PlaceholderRange(2, 4, mask)
    assert (place.num_embeds, place.end) == (2, 6)
    assert [place.embeds_in(start, 9) for start in range(8)] == [
        range(2), range(2), range(2), range(2), range(1, 2), *[range(2, 2)] * 3
    ]  # fmt: skip


def test_with_disable_chunked_mm_input_no_chunk_ends_within_an_item_that_it_begins():
    plans = steps(make(budget=8, disable_chunked_mm_input=True), with_items("a", 6, ("cat", 7), 3))
    assert [p.num_scheduled_tokens["a"] for p in plans][:3] == [6, 8, 2]
    plans = steps(make(budget=8, disable_chunked_mm_input=True), with_items("a", 6, ("cat", 12)))
    assert [p.num_scheduled_tokens["a"] for p in plans][:3] == [6, 8, 4]  # else it never began


def test_each_distinct_item_is_encoded_once_where_there_is_room():
    """And the same prompt again takes whole blocks from the prefix cache, and no encoder."""
    rng = random.Random(3)
    names = [f"i{k}" for k in range(7)]
    requests = []
    for index in range(30):
        parts = [rng.choice([rng.randrange(1, 9), (rng.choice(names), 5)]) for _ in range(4)]
        requests.append(with_items(str(index), *parts, 1, arrival_time=index // 3))
    asked = {feature.identifier for one in requests for feature in one.mm_features}
    scheduler = make(encoder=200, cache=200, num_blocks=512, caching=True)
    runner = StubRunner()
    list(run_steps(scheduler, requests, lambda _, plan: runner.execute(plan)))
    assert runner.num_encoded == len(asked) == 7
    again = with_items("again", *parts, 1)
    list(run_steps(scheduler, [again], lambda _, plan: runner.execute(plan)))
    assert runner.num_encoded == 7
    assert again.num_cached_tokens == (again.seqs[0].num_prompt_tokens - 1) // 4 * 4


def test_the_encoder_is_asked_once_for_each_sequence_that_is_tried(monkeypatch):
    """Evictions stay, so a second question in a step would have another answer."""
    asked = Counter()
    limit = EncoderInputs.limit

    def count(self, seq, num_new):
        if self is scheduler.encoder_inputs:
            asked[seq.seq_id] += 1
        return limit(self, seq, num_new)

    monkeypatch.setattr(EncoderInputs, "limit", count)
    scheduler = make(budget=12, encoder=10, cache=10, num_blocks=12)
    requests = [with_items(str(i), 2, (f"i{i}", 10), i, max_tokens=9) for i in range(4)]
    for plan in steps(scheduler, *requests):
        assert set(asked) >= set(plan.num_scheduled_tokens)
        assert set(asked.values()) <= {1}
        asked.clear()
    assert scheduler.num_preemptions


@pytest.mark.parametrize("counted_on", [False, True])
def test_a_victim_gives_its_budget_back_unless_another_counts_on_its_item(counted_on):
    """Its entry stays where none does, and the next who needs the item encodes it."""
    config = SchedulerConfig(max_num_encoder_input_tokens=15, encoder_cache_size=15)
    encoder_inputs = EncoderInputs(config)
    victim, other, late = (with_items(name, ("cat", 10)).seqs[0] for name in ("v", "o", "l"))
    assert encoder_inputs.limit(victim, 10) == 10
    encoder_inputs.schedule(victim)
    if counted_on:
        assert encoder_inputs.limit(other, 10) == 10
        encoder_inputs.schedule(other)
    encoder_inputs.free(victim)
    assert encoder_inputs.budget == (5 if counted_on else 15)
    plan = SchedulerOutput()
    encoder_inputs.complete(plan)
    assert plan.scheduled_encoder_inputs == ({"v": [0]} if counted_on else {})
    assert encoder_inputs.budget == 15
    # a step later
    assert encoder_inputs.limit(late, 10) == 10
    encoder_inputs.schedule(late)
    plan = SchedulerOutput()
    encoder_inputs.complete(plan)
    assert plan.scheduled_encoder_inputs == ({} if counted_on else {"l": [0]})
    assert encoder_inputs.cache.num_free_slots == 5
    encoder_inputs.check_integrity([other, late] if counted_on else [late])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([("cat", 41)], "image 0 of the prompt has 41 embeddings, but max_num_encoder_input_tok"),
        ([("hen", 2), ("cat", 31)], "image 1 .* encoder_cache_size is 30"),
        ([("dog", 3), ("dog", 4)], "image 1 .* 4 embeddings, but another item .*'dog' has 3"),
        ([("cow", 4)], "image 0 .* another item of the identifier 'cow' has 5"),
    ],
)
def test_an_item_that_could_never_be_encoded_is_refused(parts, message):
    """By its number and sizes; nothing has changed then, and others go on."""
    scheduler = make(encoder=40, cache=30)
    scheduler.add_request(with_items("other", ("cow", 5)))
    with pytest.raises(ValueError, match=message):
        scheduler.add_request(with_items("a", 1, *parts))
    assert list(scheduler.requests) == ["other"]
    assert len(list(steps(scheduler))) == 4


def test_a_text_model_takes_no_item():
    with pytest.raises(ValueError, match=r"1 items \(image\), but the model takes none"):
        make_scheduler().add_request(with_items("a", ("cat", 3)))
    assert make_scheduler().encoder_inputs is None
    assert request("a", 3).mm_features == []


# -- drawn mixtures ------------------------------------------------------------------------------


class Engine:
    """A scheduler, perhaps with plans in flight, and a runner that must never miss an output."""

    def __init__(self, rng):
        block_size = rng.choice([2, 4])
        encoder = rng.choice([8, 12, 30])
        cache = rng.choice([8, 9, 14, 40])
        sizes = {"max_num_encoder_input_tokens": encoder, "encoder_cache_size": cache}
        budget = rng.choice([5, 9, 20, 60])
        self.trace = Trace(99, block_size, budget, **sizes)
        num_blocks = 1 + rng.choice([40, 50, 70, 200]) // block_size
        manager = KVCacheManager(
            num_blocks, block_size, rng.random() < 0.5, num_host_blocks=30, trace=self.trace
        )
        self.num_plans = rng.choice([1, 1, 2, 3])
        config = SchedulerConfig(
            max_num_batched_tokens=budget,
            max_num_seqs=rng.choice([3, 6]),
            max_model_len=50,
            policy=rng.choice(["fcfs", "priority", "priority"]),
            preemption_mode=rng.choice(["recompute", "swap", None]),
            long_prefill_token_threshold=rng.choice([0, 0, 7]),
            disable_chunked_mm_input=rng.random() < 0.3,
            **sizes,
        )
        if self.num_plans > 1:
            stages = rng.choice([1, self.num_plans - 1])
            self.scheduler = AsyncScheduler(config, manager, self.trace, num_stages=stages)
        else:
            self.scheduler = Scheduler(config, manager, self.trace)
        self.queue = BatchQueue(self.scheduler, self.num_plans)
        self.runner = StubRunner()
        self.most = min(encoder, cache)
        self.num_checks = 0

    def execute(self, plan: SchedulerOutput):
        future = Future()
        future.set_result(self.runner.execute(plan))
        return future

    def step(self):
        oldest = self.queue.advance(self.execute)
        if oldest is not None:
            self.scheduler.update_from_output(*oldest)
        self.check()

    def fail(self):
        """Let a step fail before it is computed, with all that are in flight."""
        self.scheduler.schedule()
        self.queue.clear()
        self.scheduler.reset()
        self.check()

    def check(self):
        self.scheduler.check_integrity()
        self.num_checks += 1
        if self.num_checks % 7 == 0:
            self.check_trace()

    def check_trace(self):
        """The trace says the same of the encoder cache."""
        cache = self.scheduler.encoder_inputs.cache
        state = self.trace.beginning()
        for record in self.trace.records:
            state.apply(record)
        assert {name: set(item.holders) for name, item in state.items.items()} == cache.cached
        assert list(state.evictable_items) == list(cache.freeable)
        size = sum(item.num_embeds for item in state.items.values())
        assert size + cache.num_free_slots == cache.cache_size


def drawn_requests(rng, most):
    names = {f"i{k}": rng.randrange(1, most + 1) for k in range(4)}
    masks = dict.fromkeys(names)
    for name, size in names.items():
        if rng.random() < 0.3:  # breaks between rows, and at the ends
            mask = [True] * size
            for _ in range(3):
                mask.insert(rng.randrange(len(mask) + 1), False)
            masks[name] = tuple(mask)
    for index in range(10):
        parts = []
        room = 30
        while room > 0 and rng.random() < 0.8:
            name = rng.choice(list(names))
            length = names[name] if masks[name] is None else len(masks[name])
            part = rng.choice([rng.randrange(1, 6), (name, length, masks[name])])
            room -= part if isinstance(part, int) else length
            if room >= 0:
                parts.append(part)
        yield with_items(
            str(index), *parts, rng.choice([1, 2]), max_tokens=rng.randrange(1, 14),
            n=rng.choice([1, 1, 1, 2, 3]), priority=0,
        )  # fmt: skip


def serve(seed, failing=False):
    """Serve drawn requests to the end."""
    rng = random.Random(seed)
    engine = Engine(rng)
    scheduler = engine.scheduler
    to_come = list(drawn_requests(rng, engine.most))
    for one in to_come:
        if scheduler.policy.uses_priority:
            one.priority = rng.randrange(3)
    num_steps = 0
    while to_come or engine.queue.has_work:
        for one in [to_come.pop(0) for _ in range(min(rng.choice([0, 1, 2]), len(to_come)))]:
            with suppress(ValueError):  # it is too large for this cache
                scheduler.add_request(one)
        if scheduler.requests and rng.random() < 0.03:
            aborted = rng.choice(list(scheduler.requests))
            scheduler.finish_requests([aborted], RequestStatus.FINISHED_ABORTED)
            engine.check()
        if failing and scheduler.requests and rng.random() < 0.1:
            engine.fail()
        engine.step()
        num_steps += 1
        assert num_steps < 2000, "no progress"
    engine.check_trace()
    cache = scheduler.encoder_inputs.cache
    assert not any(cache.cached.values())
    assert cache.num_freeable_slots == cache.cache_size
    assert scheduler.kv_manager.usage == 0
    return engine


def test_no_mixture_misses_an_output():
    """With preemption both ways, priorities, plans in flight, samples, aborts and tiny caches."""
    seen = Counter()
    for seed in range(120):
        engine = serve(seed)
        for kind in (Preempted, SwappedOut, ItemEncoded, ItemEvicted):
            seen[kind] += len(list(engine.trace.of(kind)))
        encoded = list(engine.trace.of(ItemEncoded))
        assert engine.runner.num_encoded == len(encoded)
        seen["plans"] += engine.num_plans > 1
    assert min(seen.values()) >= 5, seen
    assert len(seen) == 5


@examples(40)
@given(st.integers(0, 2**32), st.booleans())
@example(1614, False)  # samples that share less than they would alone: not to be swapped out
def test_no_drawn_mixture_misses_an_output(seed, failing):
    """After a failed step, outputs are computed again."""
    serve(seed, failing)
