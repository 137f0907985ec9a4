"""A dozen faults in the engine, one at a time: ``python .ci/faults.py`` shows that each is seen.

A fault is one line of the engine that says something else. A notebook is run as always, strictly,
with that line in place of the right one: at least one of its cells must print something else than
it has stored. No file changes, so what a notebook lists of the source stays right. ``python
.ci/faults.py swap`` tries the faults whose name contains that word.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Fault:
    """One line that is wrong, and the notebook that must notice.

    Args:
        module: where it stands.
        right: what it says; there only once.
        wrong: what it is to say.
        notebook: its number.
    """

    module: str
    right: str
    wrong: str
    notebook: str

    def put_into(self, source: str) -> str:
        """The module's source with the fault.

        Raises:
            ValueError: unless the right line is there, and only once.
        """
        times = source.count(self.right)
        if times != 1:
            raise ValueError(f"{self.module} says {self.right!r} {times} times, not once.")
        return source.replace(self.right, self.wrong)


FREE = "self.block_pool.free_blocks(reversed(table.blocks))"
FAULTS = {
    "a reference is not dropped": Fault(
        "minivllm.kv.manager", FREE, "self.block_pool.free_blocks(reversed(table.blocks[1:]))", "03"
    ),
    "a sequence's first block is freed first": Fault(
        "minivllm.kv.manager", FREE, "self.block_pool.free_blocks(table.blocks)", "08"
    ),
    "a hash without its parent": Fault(
        "minivllm.kv.prefix_cache", "content = parent + array(", "content = array(", "08"
    ),
    "what was used last is evicted first": Fault(
        "minivllm.kv.block_pool", "free_block_queue.append(b for b in unused if",
        "free_block_queue.prepend(b for b in unused if", "08",
    ),
    "a chunk's cap is ignored": Fault(
        "minivllm.scheduling.scheduler", "if 0 < threshold < num_new", "if num_new < threshold < 0",
        "07",
    ),
    "a step's budget is not used up": Fault(
        "minivllm.scheduling.scheduler", "self.token_budget -= num_new +",
        "self.token_budget -= 0 * num_new +", "05",
    ),
    "the last request is the first": Fault(
        "minivllm.scheduling.policies", "return request.arrival_index",
        "return -request.arrival_index", "05",
    ),
    "the wrong victim": Fault(
        "minivllm.scheduling.policies", "return running[-1]", "return running[0]", "06"
    ),
    "a shared block is written without a copy": Fault(
        "minivllm.kv.block_table", "return partly_filled and", "return not partly_filled and", "04"
    ),
    "a swap's copies are reversed": Fault(
        # of those that come back: reversed both ways they would be right again
        "minivllm.worker.model_runner", "copy(sources, [",
        "copy(sources[::-1] if moves is scheduler_output.swaps_in else sources, [", "06b",
    ),
    "every chunk begins at position 0": Fault(
        "minivllm.worker.model_input", "self.positions += range(start, stop)",
        "self.positions += range(len(token_ids))", "00",
    ),
    "a request gets one token too many": Fault(
        "minivllm.scheduling.decoding", "seq.num_prompt_tokens == params.max_tokens or",
        "seq.num_prompt_tokens > params.max_tokens or", "00",
    ),
}  # fmt: skip


def inject(fault: Fault) -> None:
    """From now on this module is imported with its fault; its file and its cache stay as they are.

    A kernel calls this as it starts: this file lies in its startup folder, and FAULT names one.
    """
    usual = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str):
        if name != fault.module:
            return usual(loader, name)
        path = loader.get_filename(name)
        return compile(fault.put_into(Path(path).read_text(encoding="utf-8")), path, "exec")

    SourceFileLoader.get_code = get_code


def run(notebook: Path, fault_name: str) -> tuple[list[str], list[str]]:
    """Run a notebook with a fault: the cells that print something else, and those that raise."""
    with tempfile.TemporaryDirectory() as home:
        startup = Path(home, "profile_default", "startup")  # what every kernel runs first
        startup.mkdir(parents=True)
        shutil.copy(__file__, startup / "faults.py")
        report = Path(home, "report.xml")
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(notebook)]
        subprocess.run(
            [*pytest, f"--junitxml={report}"],
            env={**os.environ, "IPYTHONDIR": home, "FAULT": fault_name},
            cwd=ROOT, stdout=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        return read_report(report.read_text(encoding="utf-8"))


def read_report(xml: str) -> tuple[list[str], list[str]]:
    """The names of cells whose output differs, and of cells that failed in another way."""
    differ, raised = [], []
    for case in ET.fromstring(xml).iter("testcase"):
        for failure in case.iter("failure"):
            seen = "Cell outputs differ" in (failure.text or "")
            (differ if seen else raised).append(case.get("name", "").removeprefix("Cell "))
    return differ, raised


def main(word: str = "") -> int:
    chosen = {name: fault for name, fault in FAULTS.items() if word in name}
    unseen = 0
    for name, fault in chosen.items():
        start = time.perf_counter()
        (path,) = ROOT.glob(f"notebooks/{fault.notebook}_*.ipynb")
        differ, raised = run(path, name)
        unseen += not differ
        told = f"cells {', '.join(differ)} print something else" if differ else "NOT SEEN"
        told += f", {len(raised)} raise" if raised else ""
        seconds = time.perf_counter() - start
        print(f"{name:42} notebook {fault.notebook:3} {told} ({seconds:.0f} s)", flush=True)
    print(f"{len(chosen) - unseen} of {len(chosen)} faults are seen")
    return unseen


if "FAULT" in os.environ:  # in a kernel
    inject(FAULTS[os.environ["FAULT"]])
elif __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
