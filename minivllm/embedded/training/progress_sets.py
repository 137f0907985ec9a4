"""Small held-out sets that a training run reports on while it goes."""

import random
from pathlib import Path

from minivllm.embedded.data.corpus import OTHER_SKILLS
from minivllm.embedded.data.sample import Sample
from minivllm.embedded.data.tables import TableShape, table_conversation
from minivllm.embedded.training.encoding import encode
from minivllm.embedded.training.export import load_network
from minivllm.embedded.training.scoring import exact_rates, summary
from minivllm.embedded.training.tokenization import load_tokenizer


def held_out_tables(seed: str, rows: int, padded: float, count: int) -> list[Sample]:
    """Conversations about tables of people with held-out or invented names."""
    shape = TableShape((rows, rows), (6, 8), (15, 15), padded, held_out=True)
    return [table_conversation(random.Random(f"{seed}-{n}"), shape) for n in range(count)]


def progress_report(directory: Path) -> str:
    """Exact-match rates of an exported checkpoint, one line per set."""
    network, tokenizer = load_network(directory), load_tokenizer(directory)
    sets = {
        f"{rows} rows": held_out_tables("progress", rows, 0.5, count)
        for rows, count in ((4, 20), (10, 12), (30, 6))
    }
    sets["other skills"] = [
        draw(random.Random(f"progress-{name}-{n}"))
        for name, draw in OTHER_SKILLS.items()
        for n in range(10)
        if name in ("capital", "small talk", "tool", "json")
    ]
    return "\n".join(
        f"    {name}: {summary(exact_rates(network, (encode(tokenizer, s) for s in samples)))}"
        for name, samples in sets.items()
    )
