"""Scenes as pictures, drawn with Pillow, and what each patch of a picture shows."""

import io
import math

import numpy as np
from PIL import Image, ImageDraw

from minivllm.embedded.data.scenes import COLOURS, SHAPES, Scene, Thing

SMOOTHING = 3
"""Pixels in a row for one, where edges are antialiased."""
COVERED = 0.25
"""The share of a patch that a thing covers, from which on the patch shows it."""
Point = tuple[float, float]


def _outline(shape: str) -> list[Point]:
    """The corners of a shape of radius 1 around (0, 0); y points down."""
    if shape == "square":
        return [(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)]
    if shape == "triangle":
        return [(0.0, -1.0), (1.0, 0.85), (-1.0, 0.85)]
    arm = [(-0.34, -1.0), (0.34, -1.0), (0.34, -0.34)]
    return [  # a cross: one arm and the corner behind it, four times turned
        point for quarter in range(4) for point in (_turned(corner, 90 * quarter) for corner in arm)
    ]


def _turned(point: Point, degrees: int) -> Point:
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    return point[0] * cosine - point[1] * sine, point[0] * sine + point[1] * cosine


def _draw_thing(
    draw: ImageDraw.ImageDraw, thing: Thing, size: tuple[int, int], radius: Point, fill: object
) -> None:
    """Draw one thing; `radius` is in pixels, across and down."""
    x, y = thing.x * size[0], thing.y * size[1]
    if thing.shape == "circle":
        box = (x - radius[0], y - radius[1], x + radius[0], y + radius[1])
        draw.ellipse(box, fill=fill)
        return
    corners = (_turned(corner, thing.turn) for corner in _outline(thing.shape))
    draw.polygon([(x + dx * radius[0], y + dy * radius[1]) for dx, dy in corners], fill=fill)


def picture(scene: Scene) -> Image.Image:
    """The scene as an RGB picture of its size."""
    factor = SMOOTHING if scene.smooth else 1
    size = (scene.size[0] * factor, scene.size[1] * factor)
    image = Image.new("RGB", size, scene.ground_rgb)
    draw = ImageDraw.Draw(image)
    for thing in scene.things:
        radius = thing.radius * min(size)
        _draw_thing(draw, thing, size, (radius, radius), fill=thing.rgb)
    if scene.smooth:
        image = image.reduce(factor)
    if scene.noise:
        rng = np.random.default_rng(scene.noise_seed)
        pixels = np.asarray(image, dtype=np.float32)
        noise = rng.standard_normal(pixels.shape, dtype=np.float32)
        image = Image.fromarray(np.clip(pixels + scene.noise * noise, 0, 255).astype(np.uint8))
    if scene.jpeg_quality is not None:
        file = io.BytesIO()
        image.save(file, format="JPEG", quality=scene.jpeg_quality)
        image = Image.open(file).convert("RGB")
    return image


def patch_labels(scene: Scene, side: int = 64, patch: int = 8) -> np.ndarray:
    """Shape, colour and place of the thing that each patch of the resized picture shows.

    [3, patches]: 0 is the ground; shape i of `SHAPES`, colour i of `COLOURS` and place i are i + 1.
    The place is the thing's own, wherever in it the patch lies.
    """
    owners = Image.new("L", (side, side))
    draw = ImageDraw.Draw(owners)
    shorter = min(scene.size)
    for index, thing in enumerate(scene.things):
        across, down = (thing.radius * shorter / length * side for length in scene.size)
        _draw_thing(draw, thing, (side, side), (across, down), fill=index + 1)
    rows = side // patch
    tiles = np.asarray(owners).reshape(rows, patch, rows, patch).swapaxes(1, 2)
    tiles = tiles.reshape(rows * rows, patch * patch)
    labels = np.zeros((3, rows * rows), dtype=np.int64)
    for index, thing in enumerate(scene.things):  # things do not touch: none covers two shares
        shown = (tiles == index + 1).mean(1) >= COVERED
        of_thing = (SHAPES.index(thing.shape), COLOURS.index(thing.colour), thing.place)
        labels[:, shown] = np.array(of_thing)[:, None] + 1
    return labels
