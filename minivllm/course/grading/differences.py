"""difference: the first rule that one of two runs of a scenario breaks, in words."""

from __future__ import annotations

from collections.abc import Iterator

from minivllm.course.grading.run import Moment
from minivllm.course.grading.scenarios import BLOCK_SIZE
from minivllm.lab.translation import translated


def difference(mine: Moment, right: Moment) -> str | None:
    """First thing that the class under test did in this step and the engine does not; or None."""
    for rule in (
        _owners,
        _cached,
        _hits,
        _copies,
        _tables,
        _new_blocks,
        _preemptions,
        _tokens,
        _pool,
    ):
        for text in rule(mine, right):
            return f"step {mine.step}: {text}"
    return None


def _owners(mine: Moment, right: Moment) -> Iterator[str]:
    """References are as many as tables, and no block is in two tables unless it is shared."""
    for block_id, ref_cnt in mine.ref_counts.items():
        holders = [s for s, table in mine.tables.items() if block_id in table]
        if ref_cnt < len(holders) > 1:
            wrong = [s for s in holders if block_id not in right.tables.get(s, [])]
            taker = (wrong or holders)[-1]
            holders.remove(taker)
            yield f"you gave block {block_id} to {taker}, which {_and(holders)} still reads"
        elif ref_cnt < len(holders):
            yield (
                f"block {block_id} is in {holders[0]}'s table and is still free: blocks are "
                "taken with block_pool.get_new_blocks"
            )
        elif ref_cnt > len(holders):
            those = _and(holders) or translated("none")
            yield (
                f"block {block_id} has {ref_cnt} references, and is in the tables of "
                f"{those}: a reference too many was added, or one not dropped"
            )


def _cached(mine: Moment, right: Moment) -> Iterator[str]:
    """Full blocks are registered, others not. Only of tables that are the same so far."""
    for seq_id, table in right.tables.items():
        if mine.tables.get(seq_id) != table:
            continue
        for block_id in table:
            if block_id in right.cached and block_id not in mine.cached:
                yield (
                    f"block {block_id} of {seq_id} is full after this step, and cannot be "
                    "found: it is not in the prefix cache"
                )
            if block_id in mine.cached and block_id not in right.cached:
                yield f"block {block_id} of {seq_id} can be found, but is not full after this step"


def _hits(mine: Moment, right: Moment) -> Iterator[str]:
    """Sequences that begin in this step have the right number of tokens computed already."""
    begun = [data.seq_id for data in right.scheduler_output.scheduled_new_reqs]
    begun += right.scheduler_output.resumed_req_ids
    for seq_id in begun:
        want = right.scheduler_output.num_computed_tokens.get(seq_id)
        got = mine.scheduler_output.num_computed_tokens.get(seq_id)
        num_tokens = right.num_tokens[seq_id]
        if want is None or got == want:
            continue
        if got is None and seq_id not in mine.tables:
            yield f"{seq_id} should begin in this step; there is room for it, and it still waits"
        elif got is None or got >= num_tokens:
            yield (
                f"all {num_tokens} tokens of {seq_id} are taken as found, but at least one must be "
                f"computed: its logits are what is asked for. A hit of {want} is right"
            )
        elif got > want:
            yield (
                f"{got} tokens of {seq_id} are taken as found, and {want} is right: what comes "
                "after that is not known behind the same beginning"
            )
        else:
            yield f"{got} tokens of {seq_id} are found, but {want} are known"


def _copies(mine: Moment, right: Moment) -> Iterator[str]:
    """A shared, partly filled block is copied before it is written to; no other one ever is."""
    got = {copy.seq_id: copy for copy in mine.scheduler_output.kv_cache_block_copies}
    want = {copy.seq_id: copy for copy in right.scheduler_output.kv_cache_block_copies}
    for seq_id, copy in want.items():
        position = right.scheduler_output.num_computed_tokens[seq_id]
        if seq_id not in got and seq_id in mine.scheduler_output.num_computed_tokens:
            others = [
                s for s, table in mine.tables.items() if s != seq_id and copy.src_block_id in table
            ]
            readers = _and(others) or "another sequence"
            yield (
                f"{seq_id} writes position {position} into block {copy.src_block_id}, which "
                f"{readers} still reads: it must be copied first"
            )
        elif seq_id in got and got[seq_id] != copy:
            mistaken = got[seq_id]
            yield (
                f"{seq_id} should go on in a copy of block {copy.src_block_id}, "
                f"block {copy.dst_block_id}; you copy "
                f"{mistaken.src_block_id} to {mistaken.dst_block_id}"
            )
    for seq_id, copy in got.items():
        if seq_id not in want:
            yield f"block {copy.src_block_id} is copied for {seq_id}, though no other reads it"


def _tables(mine: Moment, right: Moment) -> Iterator[str]:
    """Every sequence has the blocks that it needs, all of them its own or rightly shared."""
    for seq_id, want in right.tables.items():
        got = mine.tables.get(seq_id)
        if got is None or got == want:
            continue
        positions = right.scheduler_output.num_computed_tokens.get(seq_id, 0)
        positions += right.scheduler_output.num_scheduled_tokens.get(seq_id, 0)
        if len(got) > len(want):
            yield f"{seq_id} has {len(got)} blocks for {positions} positions; {len(want)} will do"
        if len(got) < len(want):
            yield f"{seq_id} has {len(got)} blocks for {positions} positions; it needs {len(want)}"
        entry = next(i for i, pair in enumerate(zip(got, want, strict=False)) if len({*pair}) > 1)
        found = entry * BLOCK_SIZE < right.scheduler_output.num_computed_tokens.get(seq_id, 0)
        what = "holds these tokens" if found else "was the first one in the free queue"
        yield f"entry {entry} of {seq_id}'s table is block {got[entry]}; block {want[entry]} {what}"


def _new_blocks(mine: Moment, right: Moment) -> Iterator[str]:
    for seq_id, (want,) in right.scheduler_output.new_block_ids.items():
        (got,) = mine.scheduler_output.new_block_ids.get(seq_id, ([],))
        if got != want and mine.tables.get(seq_id) == right.tables[seq_id]:
            yield f"the ids of {seq_id}'s new blocks are {want}; allocate_slots returned {got}"
    for seq_id, (got,) in mine.scheduler_output.new_block_ids.items():
        if seq_id not in right.scheduler_output.new_block_ids and seq_id in right.tables:
            yield f"{seq_id} got no new block in this step; allocate_slots returned {got}"


def _preemptions(mine: Moment, right: Moment) -> Iterator[str]:
    for seq_id in mine.scheduler_output.preempted_req_ids:
        if seq_id not in right.scheduler_output.preempted_req_ids:
            yield f"{seq_id} was preempted, though there was room for all"
    for seq_id in right.scheduler_output.preempted_req_ids:
        if seq_id not in mine.scheduler_output.preempted_req_ids:
            yield f"{seq_id} should have been preempted: there were too few free blocks"


def _tokens(mine: Moment, right: Moment) -> Iterator[str]:
    want = right.scheduler_output.num_scheduled_tokens
    got = mine.scheduler_output.num_scheduled_tokens
    if got != want:
        yield f"this step computes {got}, and {want} is right"


def _pool(mine: Moment, right: Moment) -> Iterator[str]:
    for block_id, want in right.ref_counts.items():
        if mine.ref_counts[block_id] != want:
            holders = [s for s, table in right.tables.items() if block_id in table]
            tables = _and(holders) or "no table"
            yield (
                f"block {block_id} has {mine.ref_counts[block_id]} references; {want} is right, "
                f"from {tables}"
            )
    if mine.free != right.free:
        yield f"the free queue is {mine.free}; {right.free} is right"
    if mine.cached != right.cached:
        yield f"blocks {sorted(mine.cached)} can be found; {sorted(right.cached)} is right"


def _and(names: list[str]) -> str:
    return translated(" and ").join(names)
