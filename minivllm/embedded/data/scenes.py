"""Scenes: one to four coloured shapes on a ground, each at a place of a grid of three by three.

A scene is known exactly before it is drawn (`scene_drawing.py`), so that every question about it
has one right answer (`scene_questions.py`).
"""

import colorsys
import math
import random
from dataclasses import dataclass, field, replace

from minivllm.utils.toml_data import load_toml

WORDS = load_toml(__package__, "scenes")
SHAPES: list[str] = WORDS["shapes"]
PLACES: list[str] = WORDS["places"]
COLOURS: list[str] = list(WORDS["colours"])
RGB = tuple[int, int, int]
Point = tuple[float, float]
MOST_THINGS = 4
SMALLEST_RADIUS = 0.09
LARGEST_RADIUS = 0.46
JITTER = 0.11
"""How far a thing may lie from the middle of its place, in sides of the picture: less than half
the width of a place by a margin, so that the place is never in doubt."""


@dataclass(frozen=True)
class Thing:
    """A shape in a scene. ``x`` and ``y`` are its middle, in sides of the picture from the top
    left; ``radius`` is in shorter sides, ``turn`` in degrees."""

    shape: str
    colour: str
    place: int
    x: float
    y: float
    radius: float
    rgb: RGB
    turn: int = 0


@dataclass(frozen=True)
class Scene:
    """Things in reading order on a ground; ``ground`` is its colour's name, if it has one."""

    things: tuple[Thing, ...]
    ground: str | None
    ground_rgb: RGB
    size: tuple[int, int] = (64, 64)
    """Width and height of the picture, in pixels."""
    smooth: bool = True
    """Whether edges are antialiased."""
    noise: float = 0.0
    """Standard deviation of the noise on each number of a pixel, of 255."""
    jpeg_quality: int | None = None
    noise_seed: int = field(default=0)


def _bytes(color: tuple[float, float, float]) -> RGB:
    red, green, blue = color
    return round(255 * red), round(255 * green), round(255 * blue)


def colour_of(rng: random.Random, name: str) -> RGB:
    """One of the colours that go by this name."""
    hue, saturation, value = (rng.uniform(*bounds) for bounds in WORDS["colours"][name])
    return _bytes(colorsys.hsv_to_rgb(hue / 360 % 1.0, saturation, value))


def _ground(rng: random.Random, taken: set[str]) -> tuple[str | None, RGB]:
    """A ground's name and colour: white, grey, black, tinted, or a colour that no thing has."""
    chance = rng.random()
    if chance < 0.5:
        name = rng.choice(("white", "white", "black", "grey"))
        value = rng.uniform(*WORDS["greys"][name])
        if name != "grey" and chance < 0.25:
            value = float(name == "white")
        return name, _bytes((value, value, value))
    free = [name for name in COLOURS if name not in taken]
    if chance < 0.6 and free:
        name = rng.choice(free)
        return name, colour_of(rng, name)
    tinted = colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.0, 0.25), rng.uniform(0.1, 1.0))
    return None, _bytes(tinted)


def _turn(rng: random.Random, shape: str) -> int:
    if shape == "triangle" and rng.random() < 0.2:
        return rng.choice((90, 180, 270))
    return 45 if shape == "cross" and rng.random() < 0.2 else 0


def _room(middle: Point, others: list[Point]) -> float:
    """The largest radius with which a thing neither leaves the picture nor touches another one."""
    x, y = middle
    rooms = [x - 0.01, 0.99 - x, y - 0.01, 0.99 - y]
    rooms += [0.46 * max(abs(x - other[0]), abs(y - other[1])) for other in others]
    return min(rooms)


def _middles(rng: random.Random, places: list[int]) -> list[tuple[Point, float]]:
    """A point in each of these places, and the room around it: enough for the smallest thing."""
    while True:
        points = []
        for place in places:
            row, column = divmod(place, 3)
            x, y = ((index + 0.5) / 3 + rng.uniform(-JITTER, JITTER) for index in (column, row))
            points.append((x, y))
        rooms = [_room(p, points[:i] + points[i + 1 :]) for i, p in enumerate(points)]
        if min(rooms, default=1.0) >= SMALLEST_RADIUS:
            return list(zip(points, rooms, strict=True))


def _look(rng: random.Random) -> dict[str, object]:
    """Size, edges, noise and compression of a picture."""
    side = 64 if rng.random() < 0.15 else round(2 ** rng.uniform(5.3, 7.8))
    other = round(side * rng.uniform(0.75, 1.33)) if rng.random() < 0.3 else side
    return {
        "size": (side, other),
        "smooth": rng.random() < 0.6,
        "noise": rng.uniform(0.0, 18.0) if rng.random() < 0.6 else 0.0,
        "jpeg_quality": rng.randint(60, 95) if rng.random() < 0.25 else None,
        "noise_seed": rng.getrandbits(32),
    }


def draw_scene(rng: random.Random, most: int = MOST_THINGS, fewest: int = 1) -> Scene:
    """One random scene of `fewest` to `most` things."""
    places = sorted(rng.sample(range(9), rng.randint(fewest, most)))
    middles = _middles(rng, places)
    things = []
    for place, ((x, y), room) in zip(places, middles, strict=True):
        shape = rng.choice(SHAPES)
        colour = rng.choice(COLOURS)
        more = min(LARGEST_RADIUS, room) - SMALLEST_RADIUS
        radius = SMALLEST_RADIUS + more * math.sqrt(rng.random())
        things.append(
            Thing(
                shape, colour, place, x=x, y=y, radius=radius,
                rgb=colour_of(rng, colour),
                turn=_turn(rng, shape),
            )
        )  # fmt: skip
    ground, rgb = _ground(rng, {thing.colour for thing in things})
    return Scene(tuple(things), ground, rgb, **_look(rng))


def plain_scene(rng: random.Random) -> Scene:
    """A picture of one colour that has a name, with nothing on it."""
    if rng.random() < 0.75:
        ground = rng.choice(COLOURS)
        return Scene((), ground, colour_of(rng, ground), **_look(rng))
    while True:
        name, rgb = _ground(rng, set(COLOURS))
        if name is not None:
            return Scene((), name, rgb, **_look(rng))


def moving_scene(rng: random.Random, frames: int = 4) -> list[Scene]:
    """Frames of a scene whose only thing moves from one side to the other."""
    scene = draw_scene(rng, most=1)
    (thing,) = scene.things
    row = rng.randrange(3)
    columns = [step * 2 / (frames - 1) for step in range(frames)]
    if rng.random() < 0.5:
        columns.reverse()
    moved = []
    for column in columns:
        x = (column + 0.5) / 3
        place = 3 * row + round(column)
        here = replace(thing, place=place, x=x, y=(row + 0.5) / 3, radius=min(thing.radius, 0.15))
        moved.append(replace(scene, things=(here,)))
    return moved
