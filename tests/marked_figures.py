"""Marks of a drawn figure: frames, words, and the cells below them."""

import xml.etree.ElementTree as ET

from minivllm.lab.viz.draw.outlines import shapes_of

SVG = "{http://www.w3.org/2000/svg}"


def root_of(svg):
    """The root of a figure, under names without SVG's namespace."""
    root = ET.fromstring(svg)
    for element in root.iter():
        element.tag = element.tag.removeprefix(SVG)
    return root


def callouts(root):
    """Names of the places of all marks, boxes of their frames and words, and the words.

    A box is left, top, right and bottom.
    """
    for moved in root:
        for group in moved.iter("g"):
            if group.get("data-mark") is not None:
                shapes = list(shapes_of([_around(moved, group)]))
                frame = next(bounds(s) for s in shapes if s.element.tag == "rect")
                lines = [s for s in shapes if s.element.tag == "text" and "stroke" not in s.look]
                boxes = [bounds(line) for line in lines]
                words = (
                    min(box[0] for box in boxes), min(box[1] for box in boxes),
                    max(box[2] for box in boxes), max(box[3] for box in boxes),
                )  # fmt: skip
                text = " ".join(line.element.text for line in lines)
                yield group.get("data-mark"), frame, words, text


def _around(moved, group):
    """The group alone, as far down as the one that holds it."""
    whole = ET.Element("g", moved.attrib if moved is not group else {})
    whole.append(group)
    return whole


def bounds(shape):
    points = [point for line in shape.lines for point in line]
    xs = [x for x, _ in points]
    ys = [y for _, y in points]
    return min(xs), min(ys), max(xs), max(ys)


def distance(one, other):
    """Pixels between two boxes."""
    across = max(one[0] - other[2], other[0] - one[2], 0)
    down = max(one[1] - other[3], other[1] - one[3], 0)
    return max(across, down)


def tooltips_at(root, box):
    """Tooltips of the cells in which the middle of a box is."""
    x = (box[0] + box[2]) / 2
    y = (box[1] + box[3]) / 2
    for shape in shapes_of(root):
        title = shape.element.find("title")
        left, top, right, bottom = bounds(shape)
        if title is not None and left <= x <= right and top <= y <= bottom:
            yield title.text
