"""State: requests, blocks and queues at one moment of a trace, rebuilt by replaying records."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from minivllm.trace import records
from minivllm.trace.groups import TableGroup
from minivllm.trace.records import Record

_CHANGE_NOTHING = (
    records.StepStarted,
    records.StepPlanned,
    records.RequestSkipped,
    records.TokensWasted,
    records.RankRecord,
    records.ItemEncoded,
)
# the status of those not finished
ALIVE = {"waiting", "receiving", "running", "preempted", "swapped"}


@dataclass
class SequenceState:
    """One sequence at one moment of a trace."""

    seq_id: str
    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    # waiting, receiving (its K and V), running, preempted, swapped, or a finish reason
    status: str = "waiting"
    block_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_scheduled_tokens: int = 0  # by plans in flight, of one or of several steps
    in_flight: list[tuple[int, int]] = field(default_factory=list)  # these: step, tokens
    num_preemptions: int = 0
    other_tables: list[list[int]] = field(default_factory=list)  # of KV cache groups 1, 2, ...
    mm_items: tuple[tuple[str, int, int], ...] = ()  # as in RequestAdded
    transfer: str = ""  # "recv" or "send", while its K and V are on their way

    @property
    def tables(self) -> list[list[int]]:
        """Block ids of each KV cache group's table: ``block_ids`` is the first.

        0 is the null block: what a window has left behind.
        """
        return [self.block_ids, *self.other_tables]

    def table(self, group: int) -> list[int]:
        """The table of one group, to be changed; it begins empty."""
        while group > len(self.other_tables):
            self.other_tables.append([])
        return self.block_ids if group == 0 else self.other_tables[group - 1]


@dataclass(frozen=True)
class CachedBlock:
    """Content of a cached block: owner, hash and tokens."""

    seq_id: str  # the sequence that computed it
    logical: int  # which of its blocks it was
    token_ids: tuple[int, ...]
    group: int = 0


@dataclass
class CachedItem:
    """Entry of the encoder cache."""

    num_embeds: int
    holders: list[str] = field(default_factory=list)  # sequences that refer to it


@dataclass
class State:
    """Requests, block tables, prefix cache, free queue and encoder cache at one moment."""

    step: int
    num_blocks: int
    block_size: int
    sequences: dict[str, SequenceState] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)  # sequences, in the order of admission
    waiting: list[str] = field(default_factory=list)  # requests, the next one first
    swapped: list[str] = field(default_factory=list)  # sequences whose blocks are on the host
    lora_slots: dict[int, str] = field(default_factory=dict)  # names of adapters on the device
    contents: dict[int, CachedBlock] = field(default_factory=dict)  # by block id, held or not
    items: dict[str, CachedItem] = field(default_factory=dict)  # in the encoder cache
    # Those that none refers to, the next one to be evicted first.
    evictable_items: OrderedDict[str, None] = field(default_factory=OrderedDict)
    groups: tuple[TableGroup, ...] = ()  # of KV caches; none if there is one alone
    # Free blocks, the next one to be handed out first; at the beginning by their ids.
    free_queue: OrderedDict[int, None] = field(init=False)
    # Sequences that hold blocks or are in plans, by id: a long run has many that are over.
    _busy: dict[str, SequenceState] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._busy = dict(self.sequences)
        self._free_all_blocks()

    @property
    def cached(self) -> Collection[int]:
        """Blocks in the prefix cache, in use or not."""
        return self.contents.keys()

    @property
    def ref_counts(self) -> dict[int, int]:
        """Reference counts: number of tables that hold each block, by block id."""
        return dict(Counter(b for s in self._busy.values() for t in s.tables for b in t if b))

    @property
    def num_held_by_group(self) -> list[int]:
        """Number of blocks that tables of each KV cache group hold; shared ones count once."""
        held: list[set[int]] = [set() for _ in self.groups]
        for seq in self._busy.values():
            for blocks, table in zip(held, seq.tables, strict=False):
                blocks.update(table)
        return [len(blocks - {0}) for blocks in held]

    def block_size_of(self, group: int) -> int:
        """Positions per block of a KV cache group."""
        return self.groups[group].block_size if group < len(self.groups) else self.block_size

    @property
    def num_free_blocks(self) -> int:
        """Free blocks; the null block is not one of them."""
        return self.num_blocks - 1 - len(self.ref_counts)

    @property
    def receiving(self) -> list[str]:
        """Requests that wait beside the queue, with blocks for K and V from elsewhere."""
        return [s.request_id for s in self._busy.values() if s.status == "receiving"]

    @property
    def sending(self) -> list[str]:
        """Sequences that have ended, and keep their blocks until these are sent."""
        return [s.seq_id for s in self._busy.values() if s.transfer == "send"]

    @property
    def num_scheduled_tokens(self) -> int:
        """Number of tokens that plans in flight compute, of all sequences."""
        return sum(s.num_scheduled_tokens for s in self.sequences.values())

    def num_planned_tokens(self, step: int) -> int:
        """Number of those that one step's plan computes."""
        plans = (plan for seq in self.sequences.values() for plan in seq.in_flight)
        return sum(num_tokens for number, num_tokens in plans if number == step)

    def forget_finished(self) -> set[str]:
        """Drop the sequences of requests that are over. Returns the ids of the other requests."""
        seqs = self.sequences.values()
        alive = {s.request_id for s in seqs if s.status in ALIVE or any(s.tables)}
        for seq_id in [s for s, seq in self.sequences.items() if seq.request_id not in alive]:
            del self.sequences[seq_id]
            self._busy.pop(seq_id, None)
        return alive

    def apply(self, record: Record) -> None:
        """Apply one record."""
        if isinstance(record, records.RequestAdded):
            prompt = list(record.prompt_token_ids)
            self.sequences[record.request_id] = SequenceState(
                record.request_id,
                record.request_id,
                prompt,
                num_prompt_tokens=len(prompt),
                mm_items=record.mm_items,
            )
            self._busy.pop(record.request_id, None)  # one that is over, of the same name
            self.waiting.insert(record.queue_index, record.request_id)
            return
        if isinstance(record, _CHANGE_NOTHING):
            return
        if isinstance(record, records.LoRALoaded):
            self.lora_slots[record.slot] = record.lora_name
            return
        if isinstance(record, records.LoRAEvicted):
            del self.lora_slots[record.slot]
            return
        if isinstance(record, (records.ItemRecord, records.ItemEvicted)):
            self._apply_to_items(record)
            return
        if isinstance(record, records.BlockForgotten):
            self.contents.pop(record.block_id, None)
            return
        if isinstance(record, records.StepFailed):
            self._restart(record.waiting)
            return
        if isinstance(record, records.StepEnded):
            plan = record.step if record.plan == records.OWN_PLAN else record.plan
            for seq in list(self._busy.values()):
                if seq.in_flight and seq.in_flight[0][0] == plan:
                    _, num_tokens = seq.in_flight.pop(0)
                    seq.num_computed_tokens += num_tokens
                    seq.num_scheduled_tokens -= num_tokens
                if not (any(seq.tables) or seq.in_flight):
                    del self._busy[seq.seq_id]
            return
        seq = self.sequences[record.seq_id]  # type: ignore[attr-defined]
        self._busy[seq.seq_id] = seq
        match record:
            case records.BlocksAllocated():
                seq.table(record.group).extend(record.block_ids)
                self._hand_out(record.block_ids)
            case records.BlocksShared():
                seq.table(record.group).extend(record.block_ids)
                for block_id in record.block_ids:
                    self.free_queue.pop(block_id, None)
            case records.BlocksCached():
                self._cache(seq, record.group, record.block_ids)
            case records.BlockCopied():
                seq.table(record.group)[-1] = record.dst_block_id
                self._hand_out((record.dst_block_id,))
            case records.Forked():
                child = replace(
                    seq,
                    seq_id=record.child_id,
                    token_ids=list(seq.token_ids),
                    block_ids=list(seq.block_ids),
                    other_tables=[list(table) for table in seq.other_tables],
                    in_flight=list(seq.in_flight),
                )
                self.sequences[child.seq_id] = child
                self._busy[child.seq_id] = child
                siblings = [
                    s for s in self.running if self.sequences[s].request_id == seq.request_id
                ]
                if siblings:  # else it was preempted while its prompt's end was in flight
                    self.running.insert(self.running.index(siblings[-1]) + 1, record.child_id)
            case records.BlocksFreed():
                seq.table(record.group).clear()
                self._give_back(record.block_ids)
            case records.BlocksSkipped():
                table = seq.table(record.group)
                first = table.index(record.block_ids[0])
                table[first : first + len(record.block_ids)] = [0] * len(record.block_ids)
                self._give_back(record.block_ids)
            case records.Preempted():
                self.running.remove(seq.seq_id)
                if record.queue_index is not None:
                    self.waiting.insert(record.queue_index, seq.request_id)
                seq.status = "preempted"
                seq.num_computed_tokens = 0
                seq.num_scheduled_tokens = 0
                seq.in_flight = []
                seq.num_preemptions += 1
            case records.SwappedOut():
                if seq.seq_id in self.running:  # else said of another group's blocks
                    self.running.remove(seq.seq_id)
                    self.swapped.append(seq.seq_id)
                    seq.status = "swapped"
                    seq.num_preemptions += 1
            case records.SwappedIn():
                if seq.seq_id in self.swapped:
                    self.swapped.remove(seq.seq_id)
                    self.running.append(seq.seq_id)
                    seq.status = "running"
                seq.table(record.group)[:] = record.block_ids
                self._hand_out(record.block_ids)
            case records.Scheduled():
                if record.kind != "running":
                    if seq.request_id in self.waiting:
                        self.waiting.remove(seq.request_id)
                    if seq.seq_id not in self.running:
                        self.running.append(seq.seq_id)
                seq.status = "running"
                # a hit counts as computed, a chunk in flight not yet
                seq.num_computed_tokens = record.num_computed_tokens - seq.num_scheduled_tokens
                seq.num_scheduled_tokens += record.num_tokens
                seq.in_flight.append((record.step, record.num_tokens))
            case records.Verified() if seq.status == "running":
                num_rejected = len(record.draft_token_ids) - record.num_accepted
                if seq.in_flight:
                    step, num_tokens = seq.in_flight[0]
                    seq.in_flight[0] = step, num_tokens - num_rejected
                seq.num_scheduled_tokens -= num_rejected
            case records.TransferStarted():
                seq.transfer = record.kind
                if record.kind == "recv":
                    if seq.request_id in self.waiting:
                        self.waiting.remove(seq.request_id)
                    seq.status = "receiving"
            case records.TransferEnded():
                seq.transfer = ""
                if record.queue_index is not None:
                    self.waiting.insert(record.queue_index, seq.request_id)
                    seq.status = "waiting"
            case records.Sampled():
                seq.token_ids.append(record.token_id)
            case records.Finished():
                if seq.seq_id in self.running:
                    self.running.remove(seq.seq_id)
                elif seq.seq_id in self.swapped:
                    self.swapped.remove(seq.seq_id)
                elif seq.request_id in self.waiting:
                    self.waiting.remove(seq.request_id)
                seq.status = record.reason

    def _restart(self, waiting: Iterable[str]) -> None:
        """Let all requests wait: nothing is computed, no block is held or cached."""
        for seq_id in (*self.running, *self.swapped):
            self.sequences[seq_id].status = "preempted"
            self.sequences[seq_id].num_preemptions += 1
        for seq in self.sequences.values():
            seq.block_ids = []
            seq.other_tables = []
            seq.transfer = ""
            if seq.status == "receiving":
                seq.status = "waiting"
            if seq.status in ALIVE:
                seq.num_computed_tokens = 0
                seq.num_scheduled_tokens = 0
                seq.in_flight = []
        self.running = []
        self.swapped = []
        self.waiting = list(waiting)
        self.contents.clear()
        self.lora_slots.clear()
        self.items.clear()
        self.evictable_items.clear()
        self._free_all_blocks()

    # -- items -----------------------------------------------------------------------------------

    def _apply_to_items(self, record: Record) -> None:
        match record:
            case records.ItemReferred(_, seq_id, identifier, num_embeds):
                item = self.items.setdefault(identifier, CachedItem(num_embeds))
                item.holders.append(seq_id)
                self.evictable_items.pop(identifier, None)
            case records.ItemFreed(_, seq_id, identifier):
                holders = self.items[identifier].holders
                holders.remove(seq_id)
                if not holders:
                    self.evictable_items[identifier] = None
            case records.ItemEvicted(_, identifier):
                del self.items[identifier]
                del self.evictable_items[identifier]

    # -- blocks ----------------------------------------------------------------------------------

    def _free_all_blocks(self) -> None:
        self.free_queue = OrderedDict.fromkeys(range(1, self.num_blocks))

    def _hand_out(self, block_ids: Iterable[int]) -> None:
        """Allocate blocks: they leave the free queue, and are not cached any more."""
        for block_id in block_ids:
            self.free_queue.pop(block_id, None)  # siblings get what they share together
            self.contents.pop(block_id, None)

    def _cache(self, seq: SequenceState, group: int, block_ids: tuple[int, ...]) -> None:
        table = seq.table(group)
        logical = -1
        size = self.block_size_of(group)
        for block_id in block_ids:  # in the order of the table, which has others between them
            logical = table.index(block_id, logical + 1)
            tokens = tuple(seq.token_ids[logical * size : (logical + 1) * size])
            self.contents[block_id] = CachedBlock(seq.seq_id, logical, tokens, group)

    def _give_back(self, block_ids: tuple[int, ...]) -> None:
        """Free blocks, the last first; those without a hash go to the front. See ``BlockPool``."""
        held = self.ref_counts
        unused = [block_id for block_id in reversed(block_ids) if block_id not in held]
        for block_id in unused:
            self.free_queue[block_id] = None
        for block_id in reversed(unused):
            if block_id not in self.contents:
                self.free_queue.move_to_end(block_id, last=False)
