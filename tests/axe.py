"""axe-core in a page of a browser test: what it finds, by its rules for accessibility."""

import tempfile
from functools import cache
from pathlib import Path

from minivllm.course.playground.build import npm_files

AXE = "axe-core@4.14.1"


@cache
def _source() -> str:
    with tempfile.TemporaryDirectory() as folder:
        npm_files(AXE, ["axe.min.js"], Path(folder))
        return (Path(folder) / "axe.min.js").read_text(encoding="utf-8")


def serious(page) -> list[str]:
    """Violations that axe-core calls serious or critical: rule, element, and what is wrong."""
    page.evaluate(_source())
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [
        f"{rule['id']}: {node['html'][:120]}: {node['failureSummary']}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]
