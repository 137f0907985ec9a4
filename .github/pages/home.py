"""The first page: what this is, for whom, how to begin, and a toy."""

from pathlib import Path

from jinja2 import Template
from pages.code import files_of_the_evening

from minivllm.lab.translation import translated

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "minivllm/lab/sim/golden"

PAGE = Path(__file__).parent / "home.html"
# Title, numbers of its lectures, and what you can do after them.
PARTS = (
    ("Memory", ("00", "01", "02", "03", "04", "13"),
     "Find the place of any token's K and V, and say where the gigabytes go."),
    ("Scheduling", ("05", "06", "07", "08"),
     "Say which request runs next and why one waits, and write a policy."),
    ("Kernels", ("09", "10", "11", "A1"),
     "Read a block table inside a kernel, and say how fast it could be."),
    ("Serving", ("21", "21b", "22", "26"),
     "Measure a server honestly, and read what a real vLLM decided."),
)  # fmt: skip


def home_page(minutes: dict[str, int], uris: dict[str, str], running: int, repository: str) -> str:
    """HTML of the page.

    Args:
        minutes: of reading, by a lecture's number.
        uris: pages of the lectures by number.
        running: lectures that run on their page.
        repository: its address, or "".
    """
    hours = translated("{hours:.1f} h")

    def time(numbers: tuple[str, ...]) -> float:
        return sum(minutes[it] for it in numbers) / 60

    parts = "".join(
        f'<li><a href="{uris[numbers[0]].removesuffix(".md")}.html">{translated(title)}</a> '
        f"<small>{' · '.join(numbers)}, {hours.format(hours=time(numbers))}</small>"
        f"<span>{translated(able)}</span></li>"
        for title, numbers, able in PARTS
    )
    place = translated("the repository")
    return Template(PAGE.read_text(encoding="utf-8")).render(
        _=translated,
        repository=f'<a href="{repository}">{place}</a>' if repository else place,
        recordings=sum(1 for _ in GOLDEN.rglob("*.json.gz")),
        running=running,
        lectures=len(minutes),
        parts=parts,
        files=len(files_of_the_evening()),
    )
