"""Narration: records of a trace as sentences. Each clause is one text, for other languages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from minivllm.lab.translation import translated
from minivllm.lab.viz.draw.palette import Owner
from minivllm.lab.viz.draw.wording import block_list, count, listing, sentence, token_label
from minivllm.trace.records import (
    BlockCopied,
    BlockForgotten,
    BlocksAllocated,
    BlocksCached,
    BlocksFreed,
    BlocksShared,
    BlocksSkipped,
    Communicated,
    Finished,
    Forked,
    ItemEncoded,
    ItemEvicted,
    ItemFreed,
    ItemReferred,
    LoRAEvicted,
    LoRALoaded,
    Preempted,
    RankWorked,
    Record,
    RequestAdded,
    RequestSkipped,
    Sampled,
    Scheduled,
    StepFailed,
    SwappedIn,
    SwappedOut,
    TokensWasted,
    TransferEnded,
    TransferStarted,
    Verified,
)
from minivllm.trace.state import ALIVE, SequenceState, State

Ids = tuple[int, ...]

# reason of a RequestSkipped -> what the request waits for
WAITS_FOR = {
    "adapter": "a slot of its adapter", "grammar": "a grammar that compiles",
    "remote_kv": "remote K and V", "in_flight": "its own tokens on their way",
    "input": "more input from its client", "paused": "the end of a pause",
}  # fmt: skip
MAX_NAMED = 5  # at most as many are told one by one; of more, the first few and how many others


class Narration:
    """Takes the records of a stretch, one after the other, and tells them in one sentence.

    A stretch is what happens between two steps, in ``schedule()``, or in the update after the
    forward pass.

    Args:
        owners: whose letters to use.
        decode: turns a token id into text; None leaves out which tokens are drawn.
    """

    def __init__(self, owners: dict[str, Owner], decode: Callable[[int], str] | None = None):
        self._owners = owners
        self._decode = decode
        self._arrivals: list[str] = []
        self._swaps: dict[tuple[str, str], tuple[int, Ids, str]] = {}  # and where they are told
        self._moves: list[str] = []  # preemptions and swaps, in the order they happened
        self._freed: dict[str, Ids] = {}  # and not yet told why
        self._hits: dict[str, Ids] = {}
        self._left: dict[str, list[int]] = defaultdict(list)  # behind a window, by letter
        self._chunks: list[tuple[str, int]] = []  # clauses, and their tokens
        self._decodes: list[str] = []
        self._ahead: list[str] = []  # decodes behind a token that is on its way
        self._copies: dict[str, str] = {}
        self._grown: dict[str, Ids] = {}
        self._evicted: list[int] = []
        self._cached: list[int] = []
        self._evicted_items: list[str] = []
        self._forgotten: list[int] = []
        self._items: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        self._forks: dict[str, list[str]] = defaultdict(list)
        self._ranks: dict[int, int] = {}  # that have computed a plan, and their exchanges
        self._drawn: list[tuple[str, str]] = []
        self._ends: dict[str, list[tuple[str, Ids]]] = defaultdict(list)

    def note(self, state: State, record: Record) -> None:
        """Take one more record, given the state just before it."""
        match record:
            case RequestAdded(_, request_id, prompt):
                self._arrivals.append(f"{self._name(request_id)} ({count(len(prompt), 'token')})")
            case BlocksFreed(_, seq_id, block_ids) if state.sequences[seq_id].status not in ALIVE:
                self._moves.append(f"{self._name(seq_id)} gives back {block_list(block_ids)}")
            case BlocksFreed(_, seq_id, block_ids, group):
                self._freed[seq_id] = self._with(self._freed, seq_id, block_ids, group)
                for promised in (self._hits, self._copies, self._grown):
                    promised.pop(seq_id, None)
            case StepFailed():
                self._moves.append("a step fails; all requests wait, and all blocks are free")
            case Preempted(_, seq_id):
                self._moves.append(f"{self._name(seq_id)} is preempted{self._returns(seq_id)}")
            case SwappedOut(_, seq_id, host_ids, group):
                end = "" if group else self._returns(seq_id)
                self._note_swap("is swapped out to host", seq_id, host_ids, group, end=end)
            case SwappedIn(_, seq_id, block_ids, group):
                held = tuple(filter(None, block_ids))
                self._note_swap("comes back from the host into", seq_id, held, group)
                self._note_evicted(state, block_ids)
            case RequestSkipped(_, request_id, reason):
                what = WAITS_FOR.get(reason, "what is unknown")
                self._moves.append(f"{self._name(request_id)} waits for {what}")
            case LoRALoaded(_, _, name, slot):
                self._moves.append(f"adapter {name} is copied into slot {slot}")
            case LoRAEvicted(_, _, name, slot):
                self._moves.append(f"adapter {name} leaves slot {slot}")
            case BlocksShared(_, seq_id, block_ids, group):
                held = tuple(filter(None, block_ids))  # no null, where a window has left some
                self._hits[seq_id] = self._with(self._hits, seq_id, held, group)
            case BlocksSkipped(_, seq_id, block_ids):
                self._left[self._name(seq_id)] += block_ids
            case BlocksAllocated(_, seq_id, block_ids, group):
                self._grown[seq_id] = self._with(self._grown, seq_id, block_ids, group)
                self._note_evicted(state, block_ids)
            case BlockCopied(_, seq_id, src, dst):
                self._copies[seq_id] = f"block {src} is copied to {dst} for {self._name(seq_id)}"
                self._note_evicted(state, (dst,))
            case BlocksCached(_, _, block_ids):
                self._cached += block_ids
            case BlockForgotten(_, block_id):
                if block_id in self._cached:  # registered for a computation that was called off
                    self._cached.remove(block_id)
                else:
                    self._forgotten.append(block_id)
            case ItemReferred(_, seq_id, identifier) if identifier in state.items:
                self._items["finds"][self._name(seq_id)].append(identifier)
            case ItemEncoded(_, seq_id, identifier):
                self._items["encodes"][self._name(seq_id)].append(identifier)
            case ItemFreed(_, seq_id, identifier):
                self._items["frees"][self._name(seq_id)].append(identifier)
            case ItemEvicted(_, identifier):
                self._evicted_items.append(identifier)
            case Scheduled(_, seq_id):
                self._note_scheduled(state, state.sequences[seq_id], record)
            case Forked(_, seq_id, child_id):
                self._forks[self._name(seq_id)].append(self._name(child_id))
            case Verified(_, seq_id, drafts, num_accepted):
                said = f"{self._name(seq_id)} keeps {num_accepted} of {count(len(drafts), 'draft')}"
                self._moves.append(said)
            case TokensWasted(_, seq_id, _, num_tokens):
                if seq_id in self._owners:  # else it is over for so long that it is forgotten
                    tokens = f"{count(num_tokens, 'token')} of {self._name(seq_id)}"
                    self._moves.append(f"{tokens} came after its end: wasted")
            case TransferStarted(_, seq_id, kind, num_tokens):
                way = "come from elsewhere" if kind == "recv" else "go elsewhere"
                said = f"K and V of {count(num_tokens, 'token')} of {self._name(seq_id)} {way}"
                self._moves.append(said)
            case TransferEnded(_, seq_id, kind, succeeded):
                way = {"recv": "are there", "send": "are sent"}[kind]
                if not succeeded:
                    freed = self._freed.pop(seq_id, ())
                    way = "do not come" + (f"; it gives back {block_list(freed)}" if freed else "")
                if seq_id in self._owners:
                    self._moves.append(f"K and V of {self._name(seq_id)} {way}")
            case RankWorked(_, rank):
                self._ranks[rank] = 0
            case Communicated(_, rank):
                self._ranks[rank] = self._ranks.get(rank, 0) + 1
            case Sampled(_, seq_id, token_id) if self._decode is not None:
                self._drawn.append((self._name(seq_id), self._token(token_id)))
            case Finished(_, seq_id, reason):
                self._ends[reason].append((self._name(seq_id), self._freed.pop(seq_id, ())))

    def text(self) -> str:
        """All that was noted; "" if there is nothing to tell."""
        arrived = listing(self._arrivals, MAX_NAMED)
        clauses = [_of(self._arrivals, f"{arrived} arrives", f"{arrived} arrive"), *self._moves]
        clauses += [f"{self._name(s)} does not fit after all" for s in self._freed]
        clauses += [clause for clause, _ in self._chunks[:MAX_NAMED]]
        rest = self._chunks[MAX_NAMED:]
        tokens = count(sum(num_new for _, num_new in rest), "token")
        others = count(len(rest), "other")
        clauses.append(_of(rest, f"{others} computes {tokens}", f"{others} compute {tokens}"))
        names = listing(self._decodes, MAX_NAMED)
        clauses.append(_of(self._decodes, f"{names} decodes", f"{names} decode"))
        names = listing(self._ahead, MAX_NAMED)
        one = f"{names} decodes behind a token on its way"
        clauses.append(_of(self._ahead, one, f"{names} decode behind a token on its way"))
        clauses += [
            _of_items(verb, name, listing(items, MAX_NAMED))
            for verb, by_name in self._items.items()
            for name, items in by_name.items()
        ]
        items = listing(self._evicted_items, MAX_NAMED)
        one = f"{items} leaves the encoder cache"
        clauses.append(_of(self._evicted_items, one, f"{items} leave the encoder cache"))
        clauses += [
            f"{name} leaves {block_list(block_ids)} behind its window"
            for name, block_ids in list(self._left.items())[:MAX_NAMED]
        ]
        left = list(self._left.values())[MAX_NAMED:]
        others = count(len(left), "other")
        blocks = count(sum(map(len, left)), "block")
        clauses.append(
            _of(left, f"{others} leaves {blocks} behind", f"{others} leave {blocks} behind")
        )
        clauses += [*self._copies.values(), self._growth()]
        blocks = block_list(self._evicted)
        one = f"{blocks} is evicted from the prefix cache to make room"
        more = f"{blocks} are evicted from the prefix cache to make room"
        clauses.append(_of(self._evicted, one, more))
        blocks = block_list(self._cached)
        one = f"{blocks} is known to the prefix cache from now on"
        clauses.append(
            _of(self._cached, one, f"{blocks} are known to the prefix cache from now on")
        )
        blocks = block_list(self._forgotten)
        one = f"{blocks} is forgotten by the prefix cache"
        clauses.append(_of(self._forgotten, one, f"{blocks} are forgotten by the prefix cache"))
        clauses += [
            f"{name} forks into {listing([name, *children])}, which share its blocks"
            for name, children in self._forks.items()
        ]
        if len(self._ranks) == 1:
            clauses.append("the device has computed it")
        elif self._ranks:
            times = count(max(self._ranks.values()), "exchange")
            clauses.append(f"{len(self._ranks)} ranks computed it, with up to {times} each")
        clauses.append(self._draws())
        for reason, ended in self._ends.items():
            clauses += _ends(reason, ended)
        told = translated("; ").join(filter(None, clauses))
        return told and sentence(f"{told[0].upper()}{told[1:]}")

    def _note_swap(self, verb: str, seq_id: str, block_ids: Ids, group: int, end: str = "") -> None:
        """Tell it in one clause, also of several KV cache groups."""
        known = self._swaps.get((verb, seq_id)) if group else None
        place, before, end = known or (len(self._moves), (), end)
        if known is None:
            self._moves.append("")
        block_ids = before + block_ids
        self._swaps[verb, seq_id] = place, block_ids, end
        self._moves[place] = f"{self._name(seq_id)} {verb} {block_list(block_ids)}{end}"

    @staticmethod
    def _with(known: dict[str, Ids], seq_id: str, block_ids: Ids, group: int) -> Ids:
        """A sequence's blocks, with those of the KV cache groups before this one."""
        return known.get(seq_id, ()) + block_ids if group else block_ids

    def _name(self, seq_id: str) -> str:
        return self._owners[seq_id].letter

    def _token(self, token_id: int) -> str:
        text = self._decode(token_id)
        return f"“{text if text.strip() else token_label(token_id, self._decode, 9)}”"

    def _returns(self, seq_id: str) -> str:
        return _gives_back(self._freed.pop(seq_id, ()))

    def _note_evicted(self, state: State, block_ids: Ids) -> None:
        self._evicted += [block_id for block_id in block_ids if block_id in state.cached]

    def _note_scheduled(self, state: State, seq: SequenceState, record: Scheduled) -> None:
        """A decode, or which part of what it must catch up with."""
        name = self._name(seq.seq_id)
        hit = self._hits.get(seq.seq_id)
        did = []
        if record.kind == "resumed" and seq.status == "preempted":
            did.append("is back")
        start = record.num_computed_tokens
        if hit:
            # tables of several groups do not say it: a window's hit has only its last blocks
            num_found = start if state.groups else len(hit) * state.block_size
            did.append(f"finds {num_found} tokens cached in {block_list(hit)}")
        num_new = record.num_tokens
        if num_new == 0:
            did.append("waits for budget")
        elif record.samples and num_new == 1 and start >= seq.num_prompt_tokens:
            did.append(translated("decodes"))
        elif start + num_new > len(seq.token_ids):
            drafts = start + num_new - len(seq.token_ids)
            did.append(f"decodes with {count(drafts, 'draft')}")
        else:
            did.append(_chunk(seq, start, num_new, begins=record.kind != "running"))
        if did == [translated("decodes")]:
            ahead = start >= len(seq.token_ids)
            (self._ahead if ahead else self._decodes).append(name)
        else:
            *first, last = did
            told = f"{translated(', ').join(first)} and {last}" if first else last
            self._chunks.append((f"{name} {told}", num_new))

    def _growth(self) -> str:
        """ "A gets blocks 1 to 3, B block 4 and 2 others 5 blocks"."""
        grown = [(self._name(seq_id), ids) for seq_id, ids in self._grown.items()]
        parts = [
            translated("{} {}" if i else "{} gets {}").format(name, block_list(ids))
            for i, (name, ids) in enumerate(grown[:MAX_NAMED])
        ]
        if rest := grown[MAX_NAMED:]:
            num_blocks = sum(len(ids) for _, ids in rest)
            others = count(len(rest), "other")
            parts.append(translated("{} {}").format(others, count(num_blocks, "block")))
        return _in_a_row(parts)

    def _draws(self) -> str:
        """ "A draws “the”, B “a” and 9 others one each"."""
        parts = [
            f"{name} {token}" if i else f"{name} draws {token}"
            for i, (name, token) in enumerate(self._drawn[:MAX_NAMED])
        ]
        if rest := self._drawn[MAX_NAMED:]:
            one = count(1, "other")
            parts.append(one if len(rest) == 1 else f"{len(rest)} others one each")
        return listing(parts)


def _chunk(seq: SequenceState, start: int, num_new: int, begins: bool) -> str:
    """ "takes 4 of its 12 prompt tokens", or "computes all 14 of its tokens again"."""
    total = len(seq.token_ids)
    again = total > seq.num_prompt_tokens  # more than a prompt: it had begun to answer
    if num_new == total == 1:
        return "takes its only prompt token"
    if num_new == total:
        part = f"takes all {total} of its prompt tokens"
        return f"computes all {total} of its tokens again" if again else part
    if start + num_new < total and begins:
        part = f"takes {num_new} of its {total} prompt tokens"
        return f"computes {num_new} of its {total} tokens again" if again else part
    if start + num_new < total:
        part = f"takes {num_new} more of its {total} prompt tokens"
        return f"computes {num_new} more of its {total} tokens again" if again else part
    if num_new == 1:
        part = f"takes the last of its {total} prompt tokens"
        return f"computes the last of its {total} tokens again" if again else part
    part = f"takes the last {num_new} of its {total} prompt tokens"
    return f"computes the last {num_new} of its {total} tokens again" if again else part


def _in_a_row(parts: list[str]) -> str:
    """ "A gets block 1, B block 4 and C block 5", with the marks that a language has between."""
    marks = [translated(", #")] * (len(parts) - 2) + [translated(" and #")]
    marked = [mark.replace("#", part) for mark, part in zip(marks, parts[1:], strict=False)]
    return "".join([*parts[:1], *marked])


def _of(told: Sequence, one: str, more: str) -> str:
    """The clause of one thing, or of more; "" of none."""
    return (one if len(told) == 1 else more) if told else ""


def _of_items(verb: str, name: str, items: str) -> str:
    """The clause of a sequence and its items of the encoder cache."""
    if verb == "finds":
        return f"{name} finds {items} encoded"
    return f"{name} encodes {items}" if verb == "encodes" else f"{name} is done with {items}"


def _gives_back(block_ids: Ids) -> str:
    return f" and gives back {block_list(block_ids)}" if block_ids else ""


def _ends(reason: str, ended: list[tuple[str, Ids]]) -> list[str]:
    """ "B finishes (length) and gives back blocks 2 and 3"; of many, how many and how much."""
    one = "is aborted"
    many = "are aborted"
    if reason != "abort":
        one = f"finishes ({reason})"
        many = f"finish ({reason})"
    if len(ended) <= MAX_NAMED:
        return [f"{name} {one}{_gives_back(block_ids)}" for name, block_ids in ended]
    num_blocks = sum(len(block_ids) for _, block_ids in ended)
    names = listing([name for name, _ in ended], MAX_NAMED)
    return [f"{names} {many} and give back {count(num_blocks, 'block')}"]
