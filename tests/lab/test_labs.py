"""The labs: right solutions pass every check, typical wrong ones are told what they do."""

import inspect
import re
import sys

import pytest

from minivllm import LLM, SamplingParams
from minivllm.course.asking.requests import make_request
from minivllm.course.grading import verdicts
from minivllm.course.grading.run import Fault, run
from minivllm.course.grading.scenarios import scenarios
from minivllm.exercises import ask, ch05, labs
from minivllm.kv.block_table import BlockTable, KVCacheBlockCopy
from minivllm.kv.manager import KVCacheManager
from minivllm.sim import dry_run

LABS = labs.CLASS_LABS


@pytest.mark.slow
@pytest.mark.parametrize("name", LABS)
def test_the_solution_passes_every_check(name, capsys):
    labs.grade(LABS[name].solution)
    lines = capsys.readouterr().out.splitlines()
    first = ["first step"] * LABS[name].begins_simply
    checks = [*first, *verdicts.CHECKS]
    assert [line[:19].strip() for line in lines] == [f"passed   {check}" for check in checks]
    source = inspect.getsource(LABS[name].solution)
    assert "super()" not in source
    shown = LABS[name].show_help()._repr_mimebundle_()["text/html"]
    assert shown.count("<details>") == 2


@pytest.mark.parametrize("name", LABS)
def test_a_stub_is_not_solved_yet(name, capsys):
    labs.grade(LABS[name].stub)
    assert capsys.readouterr().out == "not solved yet\n"
    assert f"class {LABS[name].stub.__name__}" in repr(LABS[name])


@pytest.mark.parametrize("name", LABS)
def test_a_lab_is_asked_in_one_call(name, capsys):
    lab = LABS[name]
    ask(lab)
    assert capsys.readouterr().out == f"{lab!r}\nnot solved yet\n<folded: Hint, Solution>\n"
    ask(lab, dict)
    assert f"give a class that extends {lab.base.__name__}, got <class" in capsys.readouterr().out


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(ValueError, match=r"exercise must be an exercise \(ch05\.puzzle\(seed=0\)"):
        ask(ch05.puzzle)


@pytest.mark.parametrize("nonsense", [None, 3, "MyManager", dict, labs])
def test_what_is_no_lab_is_told_so(nonsense, capsys):
    labs.grade(nonsense)
    told = capsys.readouterr().out
    assert "extends one of KVCacheManager, BlockTable, PrefixCache, or a function with" in told


def drawn(seed):
    return [
        [(request.request_id, request.prompt_token_ids) for request in scenario.requests()]
        for scenario in scenarios(seed)
    ]


def test_another_seed_draws_other_scenarios(capsys):
    first, second = drawn(0), drawn(1)
    assert first[:15] == second[:15]  # the simple ones, with names
    assert all(one != other for one, other in zip(first[15:], second[15:], strict=True))
    labs.grade(spoilt(*MISTAKES["a spare block"][:3]), seed=1)
    assert "FAILED" in capsys.readouterr().out
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, got -1"):
        labs.grade(labs.allocate_slots.stub, seed=-1)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_small_scenarios_have_all_that_can_happen(seed):
    happened = set()
    for scenario in scenarios(seed):
        for moment in run(scenario, KVCacheManager, check_integrity=True):
            plan = moment.scheduler_output
            happened |= {
                name
                for name in (
                    "kv_cache_block_copies",
                    "swaps_in",
                    "swaps_out",
                    "forks",
                    "resumed_req_ids",
                )
                if getattr(plan, name)
            }
            if any(plan.num_computed_tokens.get(d.seq_id) for d in plan.scheduled_new_reqs):
                happened.add("hit")
            if set(plan.preempted_req_ids) and not plan.swaps_out:
                happened.add("recompute")
    assert happened == {
        "kv_cache_block_copies", "swaps_in", "swaps_out", "forks", "resumed_req_ids", "hit",
        "recompute",
    }  # fmt: skip


def spoilt(solution, right, wrong):
    """The solution with a typical mistake in one place, as a class of its own."""
    source = inspect.getsource(solution)
    assert source.count(right) == 1, right
    names = dict(vars(sys.modules[solution.__module__]))
    exec(source.replace(right, wrong), names)
    return names[solution.__name__]


TAKES_ANY, ALLOWED = labs.allocate_slots.solution, "if num_new + (1 if shared else 0) > pool"
WRITES, LOOKS = labs.copy_on_write.solution, labs.find_longest_cache_hit.solution
FOUND = "return found[: found.index(None)] if None in found else found"
MISTAKES = {
    "no look whether there is room": (
        TAKES_ANY, ALLOWED, "if False and num_new > pool",
        r"ValueError in line \d+, allocate_slots: cannot allocate 1 blocks: 0 are free",
    ),
    "the copy is not counted": (
        TAKES_ANY, ALLOWED, "if num_new > pool",
        r"'a copy, and no free block', step 1: ValueError in line \d+, allocate_slots: cannot",
    ),
    "only the new tokens are counted": (
        TAKES_ANY, "end = seq.num_computed_tokens, seq.num_computed_tokens + num_new_tokens",
        "end = seq.num_computed_tokens, num_new_tokens",
        r"step 3: A has 2 blocks for 9 positions; it needs 3",
    ),
    "a spare block": (
        TAKES_ANY, "(end + size - 1) // size", "end // size + 1",
        r"A has 3 blocks for 8 positions; 2 will do",
    ),
    "blocks are looked at, not taken": (
        TAKES_ANY, "pool.get_new_blocks(num_new)]", "list(pool.free_block_queue)[:num_new]]",
        r"block 1 is in A's table and is still free: blocks are taken with block_pool\.get_new",
    ),
    "full blocks are not registered": (
        TAKES_ANY, "self.prefix_cache.add(block, name)", "pass",
        r"block 1 of A is full after this step, and cannot be found",
    ),
    "blocks are registered that are not full": (
        TAKES_ANY, "full_now =", "end = len(table.blocks) * size; full_now =",
        r"block 3 of A can be found, but is not full after this step",
    ),
    "the whole table is returned": (
        TAKES_ANY, "return new_ids", "return table.block_ids",
        r"A got no new block in this step; allocate_slots returned \[1, 2\]",
    ),
    "the copy is not announced": (
        TAKES_ANY, "copies.append(copy)", "pass",
        r"A writes position 6 into block 2, which A/1 still reads: it must be copied first",
    ),
    "copied without need": (
        WRITES, "ref_cnt >= 2", "ref_cnt >= 1",
        r"block 2 is copied for A, though no other reads it",
    ),
    "never copied": (
        WRITES, "return self.blocks[position // self.block_size].ref_cnt >= 2", "return False",
        r"A writes position 6 into block 2, which A/1 still reads: it must be copied first",
    ),
    "a new block is asked about": (
        WRITES, "position % self.block_size == 0", "False",
        r"step 0: IndexError in line \d+, must_copy: list index out of range",
    ),
    "the old reference is kept": (
        WRITES, "pool.free_blocks([shared])", "pass",
        r"block 2 has 2 references, and is in the tables of none: a reference too many",
    ),
    "there and back": (
        WRITES, "src_block_id=shared.block_id, dst_block_id=own.block_id",
        "src_block_id=own.block_id, dst_block_id=shared.block_id",
        r"A should go on in a copy of block 2, block 3; you copy 3 to 2",
    ),
    "the shared block stays": (
        WRITES, "self.blocks.append(own)", "self.blocks.append(shared)",
        r"step 1: you gave block 2 to A, which A/1 still reads",
    ),
    "all tokens are found": (
        LOOKS, "(seq.num_tokens - 1) // self.block_size", "seq.num_tokens // self.block_size",
        r"all 12 tokens of B are taken as found, but at least one must be computed",
    ),
    "the first block only": (
        LOOKS, FOUND, "return [found[0]] if any(found) else []",
        r"4 tokens of B are found, but 8 are known",
    ),
    "nothing is ever found": (LOOKS, FOUND, "return []", r"0 tokens of B are found, but 8 are"),
    "looking takes a reference": (
        LOOKS, FOUND, "return [b for b in found if b and not setattr(b, 'ref_cnt', b.ref_cnt + 1)]",
        r"block 1 has 2 references, and is in the tables of B: a reference too many was",
    ),
    "the last block first": (
        LOOKS, FOUND, "return [block for block in found[::-1] if block]",
        r"entry 0 of B's table is block 2; block 1 holds these tokens",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_solution_is_told_its_fault(mistake, capsys):
    solution, right, wrong, fault = MISTAKES[mistake]
    labs.grade(spoilt(solution, right, wrong))
    out = capsys.readouterr().out
    assert re.search(fault, out), out
    assert out.count("not run") == 2 or out.startswith("FAILED   first step ")
    assert "FAILED" in out


class FreesForwards(KVCacheManager):
    """Gives the first block back first, so that a prefix is evicted before what follows it."""

    def free(self, seq, keep_host_blocks=False):
        self.block_tables[seq.seq_id].blocks.reverse()
        super().free(seq, keep_host_blocks)


class CopiesBack(BlockTable):
    """The invariants hold, but the content goes the wrong way."""

    __slots__ = ()

    def copy_on_write(self, seq_id, pool):
        copy = super().copy_on_write(seq_id, pool)
        return KVCacheBlockCopy(seq_id, copy.dst_block_id, copy.src_block_id)


def test_recordings_and_oracle_find_faults_by_themselves():
    with pytest.raises(Fault, match=r"^recording \w+, step \d+: .* is .*, vLLM has "):
        verdicts.CHECKS["golden"](FreesForwards, 0)
    with pytest.raises(Fault, match=r"^recording \w+: ValueError in line \d+, allocate_slots: "):
        verdicts.CHECKS["golden"](spoilt(TAKES_ANY, ALLOWED, "if False and num_new > pool"), 0)
    with pytest.raises(Fault, match=r"output token \d is \d+, and \d+ if everything is recomputed"):
        verdicts.CHECKS["oracle"](labs.plug_in(CopiesBack), 0)
    all_found = labs.plug_in(spoilt(*MISTAKES["all tokens are found"][:3]))
    with pytest.raises(Fault, match=r"^after 500 steps some are not done: request 9$"):
        verdicts.CHECKS["oracle"](all_found, 0)
    with pytest.raises(Fault, match=r"scheduled are \['r1', .*\], vLLM has \['r1', "):
        verdicts.CHECKS["golden"](all_found, 0)


@pytest.mark.parametrize("name", LABS)
def test_a_solution_serves_and_draws_like_the_engine(name, tiny_qwen2):
    cls = labs.plug_in(LABS[name].solution)
    workload = [
        make_request("A", 6, 9, n=2),
        make_request("B", 9, 8, 1),
        make_request("C", 9, 6, 2),
    ]
    settings = {"num_blocks": 9, "block_size": 4, "max_model_len": 24, "num_host_blocks": 20,
                "enable_prefix_caching": True}  # fmt: skip
    ours = dry_run(workload, **settings)
    workload = [
        make_request("A", 6, 9, n=2),
        make_request("B", 9, 8, 1),
        make_request("C", 9, 6, 2),
    ]
    theirs = dry_run(workload, kv_cache_manager_cls=cls, **settings)
    untimed = [
        [record for record in trace.records if not hasattr(record, "time")]
        for trace in (ours, theirs)
    ]
    assert len(untimed[0]) > 50
    assert untimed[0] == untimed[1]
    limits = {"skip_tokenizer_init": True, "block_size": 4, "max_model_len": 64}
    params = SamplingParams(n=3, seed=1, max_tokens=6, ignore_eos=True)
    outputs = [
        LLM(str(tiny_qwen2), num_gpu_blocks_override=41, **limits, **chosen).generate(
            list(range(30)), params, use_tqdm=False
        )[0].outputs
        for chosen in ({}, {"kv_cache_manager_cls": cls})
    ]  # fmt: skip
    assert [o.token_ids for o in outputs[0]] == [o.token_ids for o in outputs[1]]


def test_a_dry_run_gives_up_where_a_manager_never_ends():
    never = labs.plug_in(spoilt(*MISTAKES["all tokens are found"][:3]))
    workload = [make_request(name, list(range(8)), 3) for name in "AB"]
    with pytest.raises(RuntimeError, match=r"after 40 steps some are not done: B\."):
        dry_run(workload, num_blocks=20, block_size=4, enable_prefix_caching=True, max_steps=40,
                kv_cache_manager_cls=never)  # fmt: skip


def test_what_is_no_manager_is_refused():
    with pytest.raises(ValueError, match=r"kv_cache_manager_cls must be a subclass of KVCacheMan"):
        LLM(kv_cache_manager_cls=3)
