"""Every kind of exercise there is, by its name, such as ch05.puzzle."""

import importlib
import pkgutil

from minivllm.lab import exercises
from minivllm.lab.exercises.exercise import Seeded

CHAPTERS = [
    importlib.import_module(f"{exercises.__name__}.{module.name}")
    for module in pkgutil.iter_modules(exercises.__path__)
    if module.name.startswith("ch")
]
KINDS = {
    kind.name: kind
    for chapter in CHAPTERS
    for kind in vars(chapter).values()
    if isinstance(kind, Seeded)
}
