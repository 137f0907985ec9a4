"""Cases that measure the picture model, on scenes that its training has not seen."""

import random
from collections import defaultdict
from dataclasses import dataclass

from minivllm.embedded.data.scene_questions import Question, pair_question, prompt, question
from minivllm.embedded.data.scenes import Scene, draw_scene

QUESTIONS = 4
"""Questions about each scene."""


@dataclass(frozen=True)
class PictureCase:
    """A question about one scene or two, in one of the forms that the model knows."""

    scenes: tuple[Scene, ...]
    form: str
    question: Question

    @property
    def prompt(self) -> str:
        return prompt(self.form, len(self.scenes), self.question.text)

    def is_right(self, answer: str) -> bool:
        return answer.strip() == self.question.answer


def picture_cases(count: int = 500, seed: str = "unseen") -> list[PictureCase]:
    """Questions about `count` scenes, in the chat form or the notes' own; always the same."""
    rng = random.Random(seed)
    cases = []
    for _ in range(count):
        scene = draw_scene(rng)
        for _ in range(QUESTIONS):
            form = rng.choice(("chat", "notes"))
            cases.append(PictureCase((scene,), form, question(rng, scene)))
    return cases


def pair_cases(count: int = 100, seed: str = "unseen pairs") -> list[PictureCase]:
    """A question about each of `count` pairs of scenes; always the same."""
    rng = random.Random(seed)
    cases = []
    for _ in range(count):
        pair = (draw_scene(rng), draw_scene(rng))
        form = rng.choice(("chat", "notes"))
        cases.append(PictureCase(pair, form, pair_question(rng, pair)))
    return cases


def rates(cases: list[PictureCase], answers: list[str]) -> dict[str, float]:
    """The share of right answers: overall, by kind, and of the colour of a single thing."""
    right: dict[str, list[bool]] = defaultdict(list)
    for case, answer in zip(cases, answers, strict=True):
        kind = case.question.kind
        names = ["overall", kind]
        if kind == "colour" and len(case.scenes[0].things) == 1:
            names.append("a single thing's colour")
        for name in names:
            right[name].append(case.is_right(answer))
    return {name: round(sum(some) / len(some), 4) for name, some in right.items()}
