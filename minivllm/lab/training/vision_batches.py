"""From scenes to batches for the picture model: pictures, tokens, and who may look at whom.

Several questions are asked about one picture, in one row: all of them read the picture's tokens,
and none another one (as requests that share a prefix of the cache). So each is trained as if it
were the only one, and the picture is paid for once.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoImageProcessor, BaseImageProcessor

from minivllm.embedded.data.scene_questions import (
    FORMS,
    IMAGE,
    Question,
    moves_question,
    pair_question,
    prompt,
    question,
)
from minivllm.embedded.data.scenes import Scene, draw_scene, moving_scene, plain_scene
from minivllm.lab.training.scene_drawing import patch_labels, picture
from minivllm.lab.training.tokenization import TURN_END
from minivllm.lab.training.vision_export import write_preprocessor
from minivllm.lab.training.vision_network import EYE, PATCHES, picture_tokenizer

QUESTIONS = 9
PLAIN_SHARE = 0.06
FOLLOWED = 0.15
"""How often a question in the chat form is followed by another one."""
KINDS = {"one": 0.7, "text first": 0.06, "two": 0.2, "frames": 0.04}


@dataclass
class Row:
    """Tokens of one picture, or of several, and of questions about them.

    ``branch[i]`` is 0 for what all questions read, else the number of the question.
    """

    scenes: list[Scene] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    branch: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    answers: list[tuple[str, int, int]] = field(default_factory=list)
    """Kind of the question, first token of the answer, and its end."""

    def add(self, ids: Sequence[int], branch: int, weight: float = 0.0) -> None:
        """Append tokens to a branch; they stand behind it, or behind what all read."""
        last = max(
            (p for p, b in zip(self.positions, self.branch, strict=True) if b in (0, branch)),
            default=-1,
        )
        self.ids += ids
        self.branch += [branch] * len(ids)
        self.positions += range(last + 1, last + 1 + len(ids))
        self.weights += [weight] * len(ids)


class Rows:
    """Draws rows for a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.image = tokenizer.token_to_id(IMAGE)

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, in which a placeholder is one for each patch."""
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return [index for i in ids for index in [i] * (PATCHES if i == self.image else 1)]

    def _answer(self, row: Row, branch: int, form: str, asked: Question) -> None:
        ids = self.encode(FORMS[form][1] + asked.answer + TURN_END)
        row.answers.append((asked.kind, len(row.ids), len(row.ids) + len(ids)))
        row.add(ids, branch, weight=len(ids) ** -0.5)

    def shared(
        self, rng: random.Random, form: str, scenes: list[Scene], questions: list[Question]
    ) -> Row:
        """Questions about the same pictures, which stand before them."""
        row = Row(scenes)
        before, behind = prompt(form, len(scenes), "\0").split("\0")
        row.add(self.encode(before), 0)
        branch = 0
        for asked in questions:
            follows = branch and form == "chat" and rng.random() < FOLLOWED
            branch += not follows
            start = "\n<|im_start|>user\n" if follows else ""
            row.add(self.encode(start + asked.text + behind), branch)
            self._answer(row, branch, form, asked)
        return row

    def apart(self, form: str, scenes: list[Scene], questions: list[Question]) -> Row:
        """Each question with its own picture, which stands behind it."""
        row = Row(scenes)
        for branch, asked in enumerate(questions, start=1):
            row.add(self.encode(prompt(form, 1, asked.text)), branch)
            self._answer(row, branch, form, asked)
        return row

    def draw(self, rng: random.Random) -> Row:
        """A random row."""
        scene = partial(drawn_scene, rng)
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        if kind == "text first":
            scenes = [scene() for _ in range(3)]
            return self.apart(kind, scenes, [question(rng, one) for one in scenes])
        if kind == "frames":
            frames = moving_scene(rng)
            return self.shared(rng, "chat", frames, [moves_question(rng, frames)])
        if kind == "two":
            pair = [scene(), scene()]
            form = rng.choice(("chat", "chat", "notes", "notes' pair"))
            asked = [pair_question(rng, pair) for _ in range(QUESTIONS - 3)]
            return self.shared(rng, form, pair, asked)
        one = scene()
        form = rng.choice(("chat", "chat", "notes"))
        asked = [question(rng, one) for _ in range(QUESTIONS)]
        return self.shared(rng, form, [one], asked)


def drawn_scene(rng: random.Random) -> Scene:
    """A random scene, now and then a plain one."""
    return plain_scene(rng) if rng.random() < PLAIN_SHARE else draw_scene(rng)


@cache
def image_processor() -> BaseImageProcessor:
    """The processor that a reader of an exported directory gets."""
    with TemporaryDirectory() as directory:
        write_preprocessor(Path(directory))
        return AutoImageProcessor.from_pretrained(directory)


def pixels(scenes: Sequence[Scene]) -> Tensor:
    """The scenes as the eye sees them: [pictures, 3, side, side]."""
    processed = image_processor()([picture(scene) for scene in scenes], return_tensors="pt")
    return processed["pixel_values"]


def labels(scenes: Sequence[Scene]) -> Tensor:
    """Shape, colour and place of what each patch shows: [pictures, 3, patches]."""
    drawn = [patch_labels(scene, EYE["image_size"], EYE["patch_size"]) for scene in scenes]
    return torch.from_numpy(np.stack(drawn))


@dataclass
class PictureBatch:
    """Rows as tensors, padded at the right with weight 0.

    ids, weights and positions are [rows, length], seen [rows, 1, length, length], pixels
    [pictures, 3, side, side] in the order of their placeholders.
    """

    ids: Tensor
    weights: Tensor
    positions: Tensor
    seen: Tensor
    pixels: Tensor
    scenes: list[Scene]


def stack(rows: Sequence[Row]) -> PictureBatch:
    """Rows as one batch."""
    length = max(len(row.ids) for row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    branch = torch.full((len(rows), length), -1)
    positions = torch.zeros(len(rows), length, dtype=torch.long)
    weights = torch.zeros(len(rows), length)
    for index, row in enumerate(rows):
        used = len(row.ids)
        ids[index, :used] = torch.tensor(row.ids)
        branch[index, :used] = torch.tensor(row.branch)
        positions[index, :used] = torch.tensor(row.positions)
        weights[index, :used] = torch.tensor(row.weights)
    same = (branch[:, None, :] == branch[:, :, None]) | (branch[:, None, :] == 0)
    earlier = torch.ones(length, length, dtype=torch.bool).tril()
    scenes = [scene for row in rows for scene in row.scenes]
    seen = (same & earlier)[:, None]
    return PictureBatch(ids, weights, positions, seen, pixels=pixels(scenes), scenes=scenes)


def picture_batches(
    rows: Rows, rng: random.Random, tokens: int, pool: int = 6
) -> Iterator[PictureBatch]:
    """Endless batches of at most `tokens` tokens, each of rows of similar length.

    Rows for several batches are sorted by length and cut; the cuts are given out in random order.
    """
    while True:
        drawn: list[Row] = []
        while sum(len(row.ids) for row in drawn) < pool * tokens:
            drawn += [rows.draw(rng) for _ in range(8)]
        drawn.sort(key=lambda row: len(row.ids))
        cuts: list[list[Row]] = [[]]
        for row in drawn:
            if cuts[-1] and (len(cuts[-1]) + 1) * len(row.ids) > tokens:
                cuts.append([])
            cuts[-1].append(row)
        rng.shuffle(cuts)
        for cut in cuts:
            yield stack(cut)


def fingerprint(seed: int, count: int = 200) -> str:
    """A hash of the first rows' scenes, questions and answers: it changes whenever they do."""
    rng = random.Random(f"{seed}-fingerprint")
    rows = Rows(picture_tokenizer())
    digest = hashlib.sha256()
    for _ in range(count):
        row = rows.draw(rng)
        digest.update(repr(row.scenes).encode())
        digest.update(rows.tokenizer.decode(row.ids, skip_special_tokens=False).encode())
    return digest.hexdigest()
