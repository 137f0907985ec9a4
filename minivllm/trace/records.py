"""Records: the event types of a trace. One small frozen dataclass per kind of state change."""

from __future__ import annotations

from dataclasses import dataclass, field

OWN_PLAN = -1  # StepEnded.plan where a step ends its own plan


@dataclass(frozen=True, slots=True)
class Record:
    """Base of all records. ``step`` counts engine steps from 0; -1 is before the first."""

    step: int


@dataclass(frozen=True, slots=True)
class RequestAdded(Record):
    """A request joined the waiting queue, at this index. ``time`` as in StepStarted."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    queue_index: int
    time: float = 0.0
    lora_name: str | None = None  # its adapter
    # pictures and other items of the prompt: identifier, first placeholder, their number
    mm_items: tuple[tuple[str, int, int], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class RequestSkipped(Record):
    """A waiting request was stepped over in this step, and those behind it were not.

    ``reason`` is "adapter", which has no slot; "grammar", which is not compiled yet; "remote_kv",
    K and V that are on their way; "in_flight", tokens of its own that are; "input", of which its
    client will send more; or "paused", as all are.
    """

    request_id: str
    reason: str = "adapter"


@dataclass(frozen=True, slots=True)
class LoRARecord(Record):
    """Base of records about adapters and slots."""

    lora_int_id: int
    lora_name: str
    slot: int


@dataclass(frozen=True, slots=True)
class LoRALoaded(LoRARecord):
    """An adapter is copied from host memory into this slot."""


@dataclass(frozen=True, slots=True)
class LoRAEvicted(LoRARecord):
    """An adapter left its slot."""


@dataclass(frozen=True, slots=True)
class ItemRecord(Record):
    """Base of records about items, such as pictures, and sequences that refer to them."""

    seq_id: str
    identifier: str


@dataclass(frozen=True, slots=True)
class ItemReferred(ItemRecord):
    """A sequence refers to an item in the encoder cache: to a new entry, unless there is one."""

    num_embeds: int


@dataclass(frozen=True, slots=True)
class ItemEncoded(ItemRecord):
    """An item of a sequence is encoded in this step."""

    num_embeds: int


@dataclass(frozen=True, slots=True)
class ItemFreed(ItemRecord):
    """A sequence needs an item no longer. The entry stays until its room is needed."""


@dataclass(frozen=True, slots=True)
class ItemEvicted(Record):
    """An item left the encoder cache."""

    identifier: str


@dataclass(frozen=True, slots=True)
class StepStarted(Record):
    """``schedule()`` begins. ``time`` is in seconds of the trace's clock since it began."""

    time: float


@dataclass(frozen=True, slots=True)
class BlocksOfSequence(Record):
    """Base of records about blocks of a sequence.

    Each kind ends with ``group``: the KV cache group whose table it is. It has a default, since
    files and traces that are older lack it. (Here it cannot be: other fields follow.)
    """

    seq_id: str
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlocksAllocated(BlocksOfSequence):
    """A sequence's block table grew by these blocks."""

    group: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class BlocksShared(BlocksOfSequence):
    """A sequence's block table began with these blocks: a hit in the prefix cache.

    Of a sliding window's hit all but the last ones are 0, the null block.
    """

    group: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class BlocksSkipped(BlocksOfSequence):
    """These blocks fell behind a sequence's window: free, with the null block in their places."""

    group: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class BlocksCached(BlocksOfSequence):
    """These blocks will be full after this step, and can be found by others from now on.

    They stay so until they are allocated again or forgotten. Each one's name is a digest of the
    name of the block before it and of its own tokens.
    """

    block_hashes: tuple[bytes, ...]
    group: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class BlockForgotten(Record):
    """A block can no longer be found: what it should hold was called off, or the cache reset."""

    block_id: int
    group: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class BlockCopied(Record):
    """Copy on write: a sequence's last block was shared, so it goes on in a copy of its own."""

    seq_id: str
    src_block_id: int
    dst_block_id: int
    group: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class Forked(Record):
    """A sequence got a sibling that shares all its tokens and blocks."""

    seq_id: str
    child_id: str


@dataclass(frozen=True, slots=True)
class BlocksFreed(BlocksOfSequence):
    """A sequence gave back its whole table, listed in the order of its positions.

    Null blocks are not listed.
    """

    group: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class Preempted(Record):
    """A running sequence gave way: its blocks are gone and its request waits.

    ``queue_index`` says how many requests wait before it; None for the siblings of one that was
    said of already.
    """

    seq_id: str
    queue_index: int | None


@dataclass(frozen=True, slots=True)
class SwappedOut(BlocksOfSequence):
    """A running sequence gave way and what it has computed is kept in these host blocks."""

    group: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class SwappedIn(BlocksOfSequence):
    """A sequence is back from the host, in these blocks."""

    group: int = field(default=0, repr=False)


@dataclass(frozen=True, slots=True)
class Scheduled(Record):
    """This step computes ``num_tokens`` tokens of a sequence, from ``num_computed_tokens`` on.

    ``kind`` is "new", "resumed" (back after a preemption) or "running"; ``samples`` says whether
    the step reaches the sequence's last token, so that a new one is drawn.
    """

    seq_id: str
    kind: str
    num_computed_tokens: int
    num_tokens: int
    samples: bool


@dataclass(frozen=True, slots=True)
class StepPlanned(Record):
    """``schedule()`` is done; the forward pass of its plan begins."""

    time: float


@dataclass(frozen=True, slots=True)
class Verified(Record):
    """A step has verified a sequence's drafts: the first ``num_accepted`` are what was drawn.

    The others are rejected, and what is computed falls back behind the accepted ones. One token
    more was drawn beside: behind the last draft, or in the place of the first rejected one.
    """

    seq_id: str
    draft_token_ids: tuple[int, ...]
    num_accepted: int


@dataclass(frozen=True, slots=True)
class Sampled(Record):
    """A token was drawn and appended."""

    seq_id: str
    token_id: int


@dataclass(frozen=True, slots=True)
class Finished(Record):
    """A sequence ended. ``reason`` is "stop", "length" or "abort"."""

    seq_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class TokensWasted(Record):
    """Tokens came for a sequence that had ended when they did; ``plan`` is the step that made it.

    With several plans in flight an end is known late: that of a stop token, a stop string or an
    abort.
    """

    seq_id: str
    plan: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class TransferStarted(Record):
    """K and V of a sequence's tokens begin to move: ``kind`` is "recv" or "send".

    A sequence that gets them waits beside the queue, with its blocks; one that has ended keeps its
    blocks until they are sent.
    """

    seq_id: str
    kind: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class TransferEnded(Record):
    """A transfer has ended. One that failed may be computed: its request waits at this index."""

    seq_id: str
    kind: str
    succeeded: bool = True
    queue_index: int | None = None


@dataclass(frozen=True, slots=True)
class StepEnded(Record):
    """A plan's tokens are appended and what finished is freed.

    With several plans in flight it is one of an earlier step, or none has ended: None.
    """

    time: float
    plan: int | None = OWN_PLAN  # the step that made it


@dataclass(frozen=True, slots=True)
class RankRecord(Record):
    """Base of records about one of several ranks. ``plan`` is the step whose plan it computed.

    Times are in seconds of the trace's clock.
    """

    rank: int
    plan: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class RankWorked(RankRecord):
    """A rank computed its part of a plan; waiting for other ranks is included."""


@dataclass(frozen=True, slots=True)
class Communicated(RankRecord):
    """A rank took part in an operation of one of its groups, "tp" or "pp".

    ``op`` is "all_reduce", "all_gather", "send" or "recv"; ``num_bytes`` are those of the tensors
    that it gave, or received.
    """

    group: str
    op: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class StepFailed(Record):
    """A step raised and left no records. All requests wait, all blocks are free in id order."""

    waiting: tuple[str, ...]  # request ids, the next one first
