"""Slots and host memory of adapters, without a model: two LRUs, pins, what running ones keep."""

import pytest
from helpers import request as make_request

from minivllm.config import SchedulerConfig
from minivllm.config.lora import LoRAConfig
from minivllm.engine.lora_registry import LoRARegistry
from minivllm.kv.manager import KVCacheManager
from minivllm.lab.sim.loop import fake_execute
from minivllm.lora.request import LoadedLoRA, LoRARequest
from minivllm.scheduling.scheduler import Scheduler
from minivllm.trace import Trace
from minivllm.trace.records import LoRAEvicted, LoRALoaded, RequestSkipped


class Workers:
    """Takes the workers' place: remembers what it was told, refuses adapters whose path is bad."""

    def __init__(self):
        self.held, self.digests = [], {}

    def collective_rpc(self, method, args):
        (argument,) = args
        if method == "add_lora":
            if argument.lora_path == "bad":
                raise ValueError("bad")
            lora = LoadedLoRA.from_request(argument, self.digests.get(argument.lora_path, ""))
            self.held = [other for other in self.held if other != lora] + [lora]
            return [lora]
        self.held.remove(argument)
        return [None]


class Engine:
    """Scheduler and registry, with numbers for adapters."""

    def __init__(self, max_loras=2, max_cpu_loras=3):
        self.trace = Trace(100, 4, 64)
        manager = KVCacheManager(100, 4, trace=self.trace)
        config = SchedulerConfig(64, 8, 64, max_loras=max_loras)
        self.scheduler = Scheduler(config, manager, self.trace)
        self.workers, limits = (
            Workers(),
            LoRAConfig(max_loras=max_loras, max_cpu_loras=max_cpu_loras),
        )
        self.registry = LoRARegistry(limits, self.workers, self.scheduler)
        self.count = 0

    def ask(self, number, path=None, max_tokens=1, load_inplace=False):
        """Queue a request for an adapter. Returns it."""
        self.count += 1
        request = make_request(f"r{self.count}", [1, 2, 3], max_tokens=max_tokens)
        path = path or f"/{number}"
        request.lora_request = LoRARequest(f"a{number}", number, path, load_inplace=load_inplace)
        request.lora = self.registry.load_for(request)
        self.scheduler.add_request(request)
        return request

    def step(self):
        output = self.scheduler.schedule()
        self.scheduler.check_integrity()
        self.scheduler.update_from_output(output, fake_execute(self.scheduler, output))
        self.scheduler.check_integrity()
        names = {slot: lora.lora_name for lora, slot in self.scheduler.lora_slots.slots.items()}
        assert self.trace.state_at(self.trace.num_steps - 1).lora_slots == names
        return output

    def run(self, number):
        """Answer one request of an adapter. Returns the slots that were filled for it."""
        self.ask(number)
        return [slot for _, slot in self.step().lora_loads]

    @property
    def held(self):
        return [lora.lora_int_id for lora in self.workers.held]


def test_slots_and_host_memory_are_lrus():
    engine = Engine(max_loras=2, max_cpu_loras=3)
    # adapter, slots filled, adapters in host memory then, the least recently used first
    for number, filled, held in (
        (1, [0], {1}),
        (2, [1], {1, 2}),
        (3, [0], {1, 2, 3}),  # 1 was used longest ago
        (1, [1], {1, 2, 3}),  # then 2
        (4, [0], {1, 3, 4}),  # 2 leaves host memory; 3 its slot
        (1, [], {1, 3, 4}),
    ):
        assert engine.run(number) == filled
        assert set(engine.held) == held == set(engine.registry.loaded)
    kinds = [type(r) for r in engine.trace.records if isinstance(r, (LoRALoaded, LoRAEvicted))]
    assert kinds.count(LoRALoaded) == 5
    assert kinds.count(LoRAEvicted) == 3


def test_host_memory_is_dropped_by_last_use_and_not_by_arrival():
    """An adapter whose request came first and ran longest was used last."""
    engine = Engine(max_loras=3, max_cpu_loras=3)
    engine.ask(1, max_tokens=5)
    for number in (2, 3):
        engine.run(number)
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    engine.registry.add(LoRARequest("a4", 4, "/4"))
    assert set(engine.held) == {1, 3, 4}
    engine.run(3)
    engine.registry.add(LoRARequest("a5", 5, "/5"))
    assert set(engine.held) == {3, 4, 5}


def test_who_is_skipped_waits_in_its_place():
    engine = Engine(max_loras=1)
    first, other, same = engine.ask(1, max_tokens=3), engine.ask(2), engine.ask(1)
    output = engine.step()
    assert list(output.num_scheduled_tokens) == [first.request_id, same.request_id]
    assert engine.scheduler.waiting == [other]
    (skipped,) = [r for r in engine.trace.records if isinstance(r, RequestSkipped)]
    assert skipped.request_id == other.request_id
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    assert other.seqs[0].num_output_tokens == 1


def test_a_pinned_adapter_keeps_its_slot_and_starves_nobody():
    engine = Engine(max_loras=2, max_cpu_loras=2)
    engine.run(1)
    assert engine.registry.pin(1)
    for number in (2, 3, 4):
        assert engine.run(number) == [1]
    assert set(engine.held) == {1, 4}
    engine.ask(2, max_tokens=3)
    engine.registry.add(LoRARequest("a5", 5, "/5"))
    with pytest.raises(ValueError, match="cannot be pinned: requests of 'a2' are unfinished"):
        engine.registry.pin(5)
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    assert engine.registry.pin(5)
    with pytest.raises(ValueError, match="All items are pinned, cannot remove oldest"):
        engine.ask(6)
    with pytest.raises(ValueError, match="LoRA 9 is not registered"):
        engine.registry.pin(9)


def test_a_request_that_could_never_get_a_slot_is_refused():
    engine = Engine(max_loras=1, max_cpu_loras=2)
    engine.run(1)
    engine.registry.pin(1)
    with pytest.raises(ValueError, match=r"'a2' cannot run: all max_loras=1 slots .* \('a1'\)"):
        engine.ask(2)
    assert engine.held == [1], "it has not been read"
    engine.registry.remove(1)
    assert engine.run(2) == [0]


def test_an_adapter_that_is_removed_serves_its_requests_to_their_end():
    engine = Engine()
    running = engine.ask(1, max_tokens=4)
    engine.step()
    assert engine.registry.remove(1)
    assert not engine.registry.remove(1)
    assert set(engine.registry.loaded) == set()
    assert engine.held == [1]
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    assert running.seqs[0].num_output_tokens == 4
    engine.run(2)
    assert engine.held == [2], "what nobody needs is dropped"


def test_a_reload_in_place_leaves_running_requests_their_weights():
    engine = Engine()
    old = engine.ask(1, max_tokens=4)
    engine.step()
    engine.workers.digests["/1"] = "changed"
    new = engine.ask(1, max_tokens=2, load_inplace=True)
    assert old.lora != new.lora
    assert engine.registry.loaded[1] == new.lora
    output = engine.step()
    assert [lora for lora, _ in output.lora_loads] == [new.lora]
    assert len(engine.scheduler.lora_slots.slots) == 2
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    engine.run(2)
    assert old.lora not in engine.workers.held
    assert new.lora in engine.workers.held


def test_a_bad_adapter_evicts_none_and_an_id_has_one_name():
    engine = Engine(max_cpu_loras=2)
    engine.run(1), engine.run(2)
    with pytest.raises(ValueError, match="bad"):
        engine.ask(3, path="bad")
    assert set(engine.held) == {1, 2}
    with pytest.raises(ValueError, match="lora_int_id 1 is in use by 'a1' from '/1'"):
        engine.ask(1, path="/elsewhere")
    assert not engine.registry.add(LoRARequest("a1", 1, "/1"))


def test_host_memory_holds_more_only_while_requests_need_it():
    engine = Engine(max_loras=1, max_cpu_loras=1)
    for number in (1, 2, 3):
        engine.ask(number)
    assert set(engine.held) == {1, 2, 3}
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    assert engine.registry.list_loras() == {3}
    assert engine.held == [3]


def test_a_failed_step_empties_the_slots():
    engine = Engine()
    engine.ask(1, max_tokens=3)
    engine.scheduler.schedule()
    engine.scheduler.reset()
    assert engine.scheduler.lora_slots.slots == {}
    output = engine.step()
    assert output.reset
    assert len(output.lora_loads) == 1
