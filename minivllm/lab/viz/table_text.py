"""Block tables in characters: logical blocks above, their tokens, physical blocks below."""

from __future__ import annotations

from minivllm.lab.viz.blocks import Decode
from minivllm.lab.viz.snapshot import Table
from minivllm.lab.viz.tables import Tables, copy_note, physical, positions, progress, slots
from minivllm.lab.viz.wording import num_columns, pad, token_label

TERMINAL = 96  # columns


def table_text(tables: Tables, decode: Decode) -> str:
    lines = [tables.title, tables.facts]
    for table in tables.drawn:
        lines += ["", f"{table.owner.letter} {table.owner.seq_id}: {progress(table)}"]
        if not table.blocks:
            lines.append(f"  {table.seq.status}: no block")
        elif tables.detailed:
            lines += _text_entries(table, decode)
        else:
            lines += _text_small_entries(table)
    legend = ["+ written by this step", "□ empty"] if tables.detailed else ["logical→physical"]
    legend += ["! new in this step"] if any(b.is_new for b in tables.blocks) else []
    legend += ["×N shared by N sequences"] if any(b.ref_count > 1 for b in tables.blocks) else []
    lines += ["", tables.footnote] if tables.footnote else []
    return "\n".join([*lines, "", "  ".join(legend)])


def _text_entries(table: Table, decode: Decode) -> list[str]:
    """Four lines: logical block and positions, tokens, physical block and slots."""
    columns = []
    for block in table.blocks:
        tokens = (
            "□" if slot.token is None
            else "+" * (slot.state == "written") + token_label(slot.token, decode, 12)
            for slot in block.slots
        )  # fmt: skip
        columns.append((
            f"{block.logical} ({positions(block)})",
            " ".join(tokens),
            f"{physical(block)}{'!' * block.is_new} ({copy_note(block) or slots(block)})",
        ))  # fmt: skip
    lines: list[str] = []
    names = ("logical", "tokens", "physical")
    widths = [max(map(num_columns, column)) for column in columns]
    while columns:
        fit = 1
        while fit < len(columns) and 11 + sum(widths[: fit + 1]) + 3 * fit <= TERMINAL:
            fit += 1
        taken, columns = columns[:fit], columns[fit:]
        for name, cells in zip(names, zip(*taken, strict=True), strict=True):
            padded = (pad(cell, width) for cell, width in zip(cells, widths, strict=False))
            lines.append(f"  {name:<8} {' │ '.join(padded)}".rstrip())
        widths = widths[fit:]
    return lines


def _text_small_entries(table: Table) -> list[str]:
    lines, line = [], " "
    for block in table.blocks:
        entry = f" {block.logical}→{physical(block).replace(' ', '')}{'!' * block.is_new}"
        if len(line) + len(entry) > TERMINAL:
            lines.append(line)
            line = " "
        line += entry
    return [*lines, line]
