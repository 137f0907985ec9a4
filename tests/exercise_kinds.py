"""Every kind of exercise there is, by its name, such as ch05.puzzle."""

import importlib
import pkgutil

from minivllm import course
from minivllm.course.asking.exercise import Seeded

CHAPTERS = [
    importlib.import_module(f"{course.__name__}.{module.name}.exercises")
    for module in pkgutil.iter_modules(course.__path__)
    if module.name.startswith("ch")
]
KINDS = {
    kind.name: kind
    for chapter in CHAPTERS
    for kind in vars(chapter).values()
    if isinstance(kind, Seeded)
}
