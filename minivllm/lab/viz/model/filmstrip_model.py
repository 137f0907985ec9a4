"""FilmstripModel: the chosen steps, what each computes, and which blocks it moves."""

from __future__ import annotations

from dataclasses import dataclass

from minivllm.lab.viz.blocks.pool import Pool
from minivllm.lab.viz.blocks.snapshot import SequenceTable
from minivllm.lab.viz.draw.palette import Owner, owners_of
from minivllm.lab.viz.draw.wording import count, shorten
from minivllm.lab.viz.model.timeline_model import Cell, History
from minivllm.trace import Trace
from minivllm.trace.records import (
    BlockCopied,
    BlocksAllocated,
    BlocksFreed,
    BlocksShared,
    BlocksSkipped,
    Finished,
    Forked,
    Preempted,
    StepPlanned,
    SwappedIn,
    SwappedOut,
)

USUAL_STEPS = 6
MAX_TILES = 160  # of all frames together; beyond that each pool is a map
MAX_TABLE_LINES = 8  # of chips below a pool
MAX_NAMED = 8  # sequences in a caption; of more, the decodes are only counted


@dataclass(frozen=True)
class HostBlock:
    """A block of the host that holds something, or did before this step."""

    block_id: int
    owners: tuple[Owner, ...]
    partner: int | None = None  # the block of the pool that it is copied from, or to
    goes_out: bool = False  # to the host, in this step


@dataclass(frozen=True)
class FilmFrame:
    """One step of a filmstrip."""

    step: int
    plan: str  # "A 8 · B 1 · C ×"
    pool: Pool
    got: set[int]  # blocks that a sequence got in this step
    gave: set[int]  # and those that one gave back, and that none got
    host: list[HostBlock]

    @property
    def changed(self) -> set[int]:
        return self.got | self.gave

    @property
    def tables(self) -> list[SequenceTable]:
        return [table for table in self.pool.snapshot.tables if table.blocks]


@dataclass(frozen=True)
class FilmstripModel:
    """The frames, and what to say about them."""

    frames: list[FilmFrame]
    after: str

    @property
    def title(self) -> str:
        steps = ", ".join(str(frame.step) for frame in self.frames)
        return f"Filmstrip, {'step' if len(self.frames) == 1 else 'steps'} {steps}"

    @property
    def facts(self) -> str:
        usable = self.frames[0].pool.snapshot.num_blocks - 1
        held = ", ".join(str(len(frame.pool.holders)) for frame in self.frames)
        facts = f"after {self.after} · {held} of {count(usable, 'block')} held"
        unused = usable + 1 - self.frames[0].pool.num_drawn
        return facts + (f" · {unused} never used, not drawn" if unused else "")

    @property
    def alt(self) -> str:
        frames = "; ".join(
            f"step {f.step}: {f.plan.replace(' · ', ', ')}, {len(f.pool.holders)} blocks held, "
            f"{len(f.changed)} changed"
            for f in self.frames
        )
        return f"Filmstrip after {self.after}: {frames}."

    @property
    def as_map(self) -> bool:
        num_tiles = sum(frame.pool.num_drawn for frame in self.frames)
        return num_tiles > MAX_TILES or not self.frames[0].pool.detailed

    @property
    def with_tables(self) -> bool:
        return not self.as_map and max(len(f.tables) for f in self.frames) <= MAX_TABLE_LINES

    @property
    def num_host_blocks(self) -> int:
        """The most that a frame draws."""
        return 0 if self.as_map else max(len(frame.host) for frame in self.frames)


def eventful_steps(trace: Trace) -> list[int]:
    """Steps in which blocks changed hands, the first and the last of them included."""
    events = trace.of(
        BlocksAllocated, BlocksShared, BlockCopied, Forked, Preempted, SwappedOut, SwappedIn
    )
    steps = sorted({record.step for record in events})
    if len(steps) > USUAL_STEPS:
        last = len(steps) - 1
        steps = [steps[i * last // (USUAL_STEPS - 1)] for i in range(USUAL_STEPS)]
    return steps or [0]


def plan_of(history: History, step: int) -> str:
    """Plan of a step: how many tokens each computes, and which give way."""
    told = []
    decoding = []
    for seq_id, row in history.rows.items():
        cell = row.get(step, Cell())
        letter = history.owners[seq_id].letter
        if cell.preempted:
            told.append(f"{letter} ×")
        elif cell.kind == "prefill":
            told.append(f"{letter} {cell.num_tokens}")
        elif cell.kind == "decode":
            decoding.append(f"{letter} 1")
        elif cell.kind == "verify":
            decoding.append(f"{letter} 1+{cell.num_tokens - 1}")
    if len(told) + len(decoding) > MAX_NAMED:
        decoding = [count(len(decoding), "decode")] if decoding else []
        told = told[:MAX_NAMED] + ([f"{len(told) - MAX_NAMED} more"] if told[MAX_NAMED:] else [])
    return " · ".join(decoding + told) or "nothing to compute"


def changed_blocks(trace: Trace, step: int, after: str) -> tuple[set[int], set[int]]:
    """Blocks that a sequence got in this step, up to this moment, and those given back."""
    got: set[int] = set()
    gave: set[int] = set()
    for record in trace.at(step):
        match record:
            case StepPlanned() if after == "schedule":
                break
            case BlockCopied():
                got.add(record.dst_block_id)
            case BlocksFreed() | BlocksSkipped():
                gave.update(record.block_ids)
            case BlocksAllocated() | BlocksShared() | SwappedIn():
                got.update(record.block_ids)
    got.discard(0)  # the null block, of what a window has left behind
    return got, gave - got


def host_blocks(trace: Trace, step: int, after: str) -> list[HostBlock]:
    """Blocks of the host that are in use at this moment, or were given back in this step."""
    held: dict[str, dict[int, tuple[int, ...]]] = {}  # by sequence and KV cache group
    moved: dict[int, tuple[int, bool]] = {}  # by host block, its partner and the direction
    names: dict[int, dict[str, None]] = {}
    owners = owners_of(trace)
    before = None
    for record in trace.until(step, after) if any(trace.of(SwappedOut)) else ():
        match record:
            case SwappedOut(at, seq_id, ids, group):
                held.setdefault(seq_id, {})[group] = ids
                if at == step:
                    before = before or trace.state_at(step - 1, "update")
                    table = before.sequences[seq_id].table(group)
                    pairs = zip(ids, filter(None, table), strict=False)
                    moved |= {host: (block_id, True) for host, block_id in pairs}
            case SwappedIn(at, seq_id, ids, group):
                came = held.get(seq_id, {}).pop(group, ())
                if at == step:
                    pairs = zip(came, filter(None, ids), strict=False)
                    moved |= {host: (block_id, False) for host, block_id in pairs}
                    for host in came:
                        names.setdefault(host, {})[seq_id] = None
            case Finished(_, seq_id):
                held.pop(seq_id, None)
    for seq_id, by_group in held.items():
        for host in (host for ids in by_group.values() for host in ids if host):
            names.setdefault(host, {})[seq_id] = None
    return [
        HostBlock(host, tuple(owners[seq_id] for seq_id in names[host]), *moved.get(host, ()))
        for host in sorted(names)
    ]


def strip_text(strip: FilmstripModel) -> str:
    lines = [strip.title, strip.facts]
    for frame in strip.frames:
        lines += ["", shorten(f"step {frame.step}: {frame.plan}", 96)]
        for table in frame.tables[:MAX_TABLE_LINES]:
            ids = (
                "null"
                if b.is_null
                else f"{b.block_id}{f'×{b.ref_count}' if b.ref_count > 1 else ''}"
                f"{'!' if b.block_id in frame.changed else ''}"
                for b in table.blocks
            )
            lines.append(shorten(f"  {table.name} → {' '.join(ids)}", 96))
        if len(frame.tables) > MAX_TABLE_LINES:
            lines.append(f"  {count(len(frame.tables) - MAX_TABLE_LINES, 'more table')}")
        cached = len(frame.pool.cached_and_free)
        gone = sorted(frame.gave - frame.pool.holders.keys())
        free = [f"{frame.pool.snapshot.num_blocks - 1 - len(frame.pool.holders)} free"]
        free += [f"{cached} of them cached"] if cached else []
        free += [f"given back: {' '.join(map(str, gone))}"] if gone else []
        lines.append(shorten("  " + ", ".join(free), 96))
        host = [f"{b.block_id} ({' '.join(o.letter for o in b.owners)})" for b in frame.host]
        lines += [shorten(f"  host: {', '.join(host)}", 96)] if host else []
    return "\n".join([*lines, "", "! got or given back in this step  ×N shared"])
