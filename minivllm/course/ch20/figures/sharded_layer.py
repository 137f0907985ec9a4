"""Sharded layer: each rank's part of every matrix of one layer, and where the ranks' sums are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minivllm.distributed.shard import check_tensor_parallel_size, kv_head_share, share
from minivllm.lab.viz.draw.claim import Mark
from minivllm.lab.viz.draw.figure import Figure, finish
from minivllm.lab.viz.draw.layout import HEADER_HEIGHT, MARGIN, box_swatch, sheet
from minivllm.lab.viz.draw.palette import GREY, INK, LINE, OKABE_ITO, PAPER
from minivllm.lab.viz.draw.svg import Drawing
from minivllm.lab.viz.draw.wording import count, pad, span
from minivllm.utils.validation import check, is_int

# Sizes in pixels.
TALLEST = 92
THINNEST = 2
NAMES = 54
COLUMN = 88
SUM = 62
LANE = 40
MOST_RANKS = 8


@dataclass(frozen=True)
class _Matrix:
    """Matrix of a layer, ``rows`` by ``columns``, and the rows and columns that each rank has."""

    name: str
    rows: int
    columns: int
    row_shares: list[list[slice]]  # by rank; of a fused matrix one slice for each of its parts
    column_shares: list[slice]
    is_summed: bool = False  # the ranks' outputs are parts of a sum

    def shape(self, rank: int) -> str:
        own = self.column_shares[rank]
        rows = sum(rows.stop - rows.start for rows in self.row_shares[rank])
        return f"{rows} × {own.stop - own.start}"


def sharded_layer(
    config: Any, tensor_parallel_size: int, num_tokens: int = 1, title: str | None = None,
    mark: Sequence[Mark] = (),
) -> Figure:  # fmt: skip
    """Draw one layer of a decoder with a gated MLP as its ranks have it, a lane for each.

    Matrices are outlines to scale, as high as their outputs and as wide as their inputs; what the
    rank has is filled. Where the ranks' outputs are summed there is a ⊕ over all lanes, and below
    it the bytes that each of them gives.

    Args:
        config: of the whole model, a ModelConfig.
        tensor_parallel_size: number of ranks, 2 to 8.
        num_tokens: rows of a step.
        title, mark: what it shows, and places to point at: ("rank 0", matrix, text), or ("sum",
            "o_proj" or "down_proj", text).

    Raises:
        ValueError: if the ranks cannot share the layer, are too many, or there is no token.
    """
    size = tensor_parallel_size
    ok = is_int(size, 2) and size <= MOST_RANKS
    check(ok, "tensor_parallel_size", size, f"an integer from 2 to {MOST_RANKS}")
    check(is_int(num_tokens, 1), "num_tokens", num_tokens, "an integer of at least 1")
    check_tensor_parallel_size(config.num_heads, config.num_kv_heads, config.intermediate_size,
                               size)  # fmt: skip
    matrices = _matrices(config, size)
    heads = [_heads(config, rank, size) for rank in range(size)]
    num_bytes = num_tokens * config.hidden_size * config.dtype.itemsize
    head = f"One layer on {size} ranks"
    facts = f"{count(num_tokens, 'token')} · {num_bytes:,} bytes a sum"
    lanes = [
        f"rank {rank}: "
        + ", ".join(
            f"{matrix.name} {matrix.shape(rank)}"
            + (f", {heads[rank]}" if matrix.name == "qkv_proj" else "")
            for matrix in matrices
        )
        for rank in range(size)
    ]
    alt = f"{head}. {'; '.join(lanes)}. Summed over ranks after o_proj and down_proj, {facts}."
    drawing = _drawing(matrices, heads, num_bytes, (head, facts, alt))
    return finish(drawing, _text(matrices, heads, num_bytes, head, facts), title, mark)


def _matrices(config: Any, size: int) -> list[_Matrix]:
    hidden = config.hidden_size
    inner = config.intermediate_size
    unit = config.head_dim
    ranks = range(size)
    width = config.num_heads * unit
    qkv = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
    parts: list[list[slice]] = []
    for rank in ranks:
        begin = 0
        mine = []
        for number, heads in enumerate(qkv):
            own = (kv_head_share if number else share)(heads, rank, size)
            mine.append(slice((begin + own.start) * unit, (begin + own.stop) * unit))
            begin += heads
        parts.append(mine)
    halves = [
        [slice(start + own.start, start + own.stop) for start in (0, inner)]
        for own in (share(inner, rank, size) for rank in ranks)
    ]
    everything = [slice(0, hidden)] * size
    all_rows = [[slice(0, hidden)]] * size
    return [
        _Matrix("qkv_proj", sum(qkv) * unit, hidden, parts, everything),
        _Matrix(
            "o_proj",
            hidden,
            width,
            row_shares=all_rows,
            column_shares=[share(width, r, size) for r in ranks],
            is_summed=True,
        ),
        _Matrix("gate_up_proj", 2 * inner, hidden, halves, everything),
        _Matrix(
            "down_proj",
            hidden,
            inner,
            row_shares=all_rows,
            column_shares=[share(inner, r, size) for r in ranks],
            is_summed=True,
        ),
    ]


def _heads(config: Any, rank: int, size: int) -> str:
    own = share(config.num_heads, rank, size)
    kv = kv_head_share(config.num_kv_heads, rank, size)
    return f"q {span(own.start, own.stop - 1)}, k v {span(kv.start, kv.stop - 1)}"


def _drawing(
    matrices: list[_Matrix], heads: list[str], num_bytes: int, words: tuple[str, str, str]
) -> Drawing:
    scale = TALLEST / max(max(m.rows, m.columns) for m in matrices)
    tallest = max(m.rows for m in matrices) * scale
    top = HEADER_HEIGHT + 34
    lane = tallest + LANE
    bottom = top + lane * len(heads) + 26
    widths = [max(COLUMN, m.columns * scale + 16) for m in matrices]
    right = MARGIN + NAMES + sum(widths) + COLUMN + 2 * SUM
    legend = [(box_swatch(stroke=LINE), "of other ranks"),
              (box_swatch(fill=OKABE_ITO[0], stroke=INK), "this rank's part")]  # fmt: skip
    drawing = sheet(*words, right, bottom, legend)
    for rank in range(len(heads)):
        y = top + lane * rank
        drawing.text(MARGIN, y + tallest / 2 + 4, f"rank {rank}", font_weight="bold")
        line = y + tallest / 2
        drawing.path(f"M{MARGIN + NAMES - 6:g} {line:g}H{right - 8:g}", stroke=LINE)
    x = float(MARGIN + NAMES)
    for matrix, width in zip(matrices, widths, strict=True):
        cut = "inputs" if matrix.is_summed else "outputs"
        middle = x + width / 2
        with drawing.group(text_anchor="middle"):
            drawing.text(middle, top - 22, matrix.name, width - 4, font_weight="bold")
            drawing.text(middle, top - 8, f"cut by {cut}", fill=GREY, font_size=11)
        for rank in range(len(heads)):
            _draw_matrix(
                drawing,
                matrix,
                rank,
                middle=middle,
                y=top + lane * rank,
                tallest=tallest,
                scale=scale,
            )
        x += width
        if matrix.name == "qkv_proj":
            drawing.text(x + COLUMN / 2, top - 22, "attention", text_anchor="middle",
                         font_weight="bold")  # fmt: skip
            drawing.text(x + COLUMN / 2, top - 8, "by heads", text_anchor="middle",
                         fill=GREY, font_size=11)  # fmt: skip
            for rank, told in enumerate(heads):
                _draw_heads(drawing, told, x, top + lane * rank + tallest / 2)
            x += COLUMN
        if matrix.is_summed:
            lanes = [top + lane * rank + tallest / 2 for rank in range(len(heads))]
            _draw_sum(
                drawing,
                matrix.name,
                x=x + SUM / 2,
                lanes=lanes,
                below=bottom - 12,
                num_bytes=num_bytes,
            )
            x += SUM
    return drawing


def _draw_matrix(
    drawing: Drawing, matrix: _Matrix, rank: int, middle: float, y: float, tallest: float,
    scale: float,
) -> None:  # fmt: skip
    """The whole matrix as an outline, a rank's part of it filled, and the part's shape below."""
    width = max(THINNEST, matrix.columns * scale)
    height = max(THINNEST, matrix.rows * scale)
    left = middle - width / 2
    above = y + (tallest - height) / 2
    drawing.rect(left, above, width, height, fill=PAPER, stroke=LINE)
    own = matrix.column_shares[rank]
    for rows in matrix.row_shares[rank]:
        drawing.rect(
            left + own.start * scale,
            above + rows.start * scale,
            width=max(THINNEST, (own.stop - own.start) * scale),
            height=max(THINNEST, (rows.stop - rows.start) * scale),
            fill=OKABE_ITO[rank % len(OKABE_ITO)],
            stroke=INK,
            stroke_width=0.7,
        )
    drawing.place((f"rank {rank}", matrix.name), left, above, width, height)
    drawing.text(middle, y + (tallest + height) / 2 + 14, matrix.shape(rank), COLUMN - 4,
                 font_size=11, text_anchor="middle", halo=True)  # fmt: skip


def _draw_heads(drawing: Drawing, told: str, x: float, y: float) -> None:
    drawing.rect(x + 6, y - 17, COLUMN - 12, 34, rx=4, fill=PAPER, stroke=GREY)
    for line, words in enumerate(told.split(", ")):
        drawing.text(x + COLUMN / 2, y - 3 + 14 * line, words, COLUMN - 16, font_size=11,
                     text_anchor="middle")  # fmt: skip


def _draw_sum(
    drawing: Drawing, name: str, x: float, lanes: list[float], below: float, num_bytes: int
) -> None:
    """A ⊕ in each lane, one line through all of them, and the bytes below."""
    drawing.path(f"M{x:g} {lanes[0]:g}V{below - 14:g}", stroke=INK, stroke_width=1.5)
    for y in lanes:
        drawing.path(f"M{x - 9:g} {y:g}a9 9 0 1 0 18 0a9 9 0 1 0-18 0Z", fill=PAPER, stroke=INK,
                     stroke_width=1.5)  # fmt: skip
        drawing.path(f"M{x - 5:g} {y:g}h10M{x:g} {y - 5:g}v10", stroke=INK, stroke_width=1.5)
    drawing.place(("sum", name), x - 10, lanes[0] - 10, 20, lanes[-1] - lanes[0] + 20)
    drawing.text(x, below, f"{num_bytes:,} bytes", SUM + 28, font_size=11, text_anchor="middle")


def _text(matrices: list[_Matrix], heads: list[str], num_bytes: int, head: str, facts: str) -> str:
    lines = [head, facts, ""]
    titles = []
    for matrix in matrices:
        titles.append(pad(matrix.name, 14))
        if matrix.name == "qkv_proj":
            titles.append(pad("attention", 16))
        if matrix.is_summed:
            titles.append(pad("", 3))
    lines.append(pad("", 8) + "".join(titles).rstrip())
    for rank, told in enumerate(heads):
        line = pad(f"rank {rank}", 8)
        for matrix in matrices:
            line += pad(matrix.shape(rank), 14)
            if matrix.name == "qkv_proj":
                line += pad(told, 16)
            if matrix.is_summed:
                line += "⊕  "
        lines.append(line.rstrip())
    return "\n".join([*lines, "", f"⊕ a sum over all ranks: each gives {num_bytes:,} bytes"])
