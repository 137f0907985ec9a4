"""Identity of a picture: its content, and nothing beside it."""

import itertools

import numpy as np
import pytest
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st
from picture_chats import encoded, picture
from PIL import Image, PngImagePlugin

from minivllm.multimodal.hasher import hash_item, serialize
from minivllm.multimodal.image import read_image

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=6,
)


def written(value):
    return b"".join(bytes(part) for part in serialize(value))


def same(a, b):
    """Equal, and of the same kinds: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if isinstance(a, (list, dict)) or isinstance(b, (list, dict)):
        if type(a) is not type(b) or len(a) != len(b):
            return False
        if isinstance(a, list):
            return all(itertools.starmap(same, zip(a, b, strict=True)))
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and repr(a) == repr(b)


@examples(150)
@given(PLAIN, PLAIN)
def test_no_two_values_have_the_same_bytes(a, b):
    assert (written(a) == written(b)) == same(a, b)
    assert not written(a).startswith(written(b)) or same(a, b), "one could be moved into the next"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (["ab", "c"], ["a", "bc"]),
        ([["a"], "b"], [["a", "b"]]),
        ({"a": None}, {"a": "N"}),
        ("1", 1),
        (1, True),
        (b"a", "a"),
        (np.zeros((2, 3), np.uint8), np.zeros((3, 2), np.uint8)),
        (np.zeros(4, np.uint8), np.zeros(1, np.float32)),
        (np.zeros(4, np.int32), np.zeros(4, np.uint32)),
        (np.zeros((0, 2)), np.zeros((2, 0))),
        (np.zeros(()), np.zeros(1)),
        (picture(1), np.asarray(picture(1))),
        (picture(1), picture(1).convert("RGBA")),
        (picture(1), Image.frombytes("RGB", (20, 30), picture(1).tobytes())),
    ],
)  # fmt: skip
def test_what_looks_alike_is_told_apart(a, b):
    assert hash_item("m", "image", a, {}) != hash_item("m", "image", b, {})


def test_a_palette_and_its_transparency_are_content():
    image = picture(2).quantize(4)
    other = image.copy()
    colors = other.getpalette()
    other.putpalette([255 - color for color in colors])
    assert image.tobytes() == other.tobytes()
    clear = image.copy()
    clear.info["transparency"] = 1
    hashes = {hash_item("m", "image", one, {}) for one in (image, other, clear)}
    assert len(hashes) == 3


def test_options_model_and_modality_are_part_of_it():
    base = ("m", "image", picture(1), {"a": 1, "b": [2]})
    hashes = {hash_item(*base)}
    for index, other in enumerate(("n", "video", picture(2), {"a": 1, "b": [3]})):
        hashes.add(hash_item(*base[:index], other, *base[index + 1 :]))
    assert len(hashes) == 5
    assert hash_item("m", "image", picture(1), {"b": [2], "a": 1}) == hash_item(*base), "any order"
    assert hash_item(*base) == hash_item(*base), "and the same every time"


def test_neither_exif_nor_a_file_s_notes_change_a_picture():
    """Not an ImageID that two pictures share, and not one that a picture alone has."""
    exif = Image.Exif()
    exif[0xA420] = "0123456789abcdef0123456789abcdef"  # ImageUniqueID
    notes = PngImagePlugin.PngInfo()
    notes.add_text("uuid", "cat")

    def of(image, **notes):
        return hash_item("m", "image", read_image(encoded(image, **notes)), {})

    one, other = picture(1), picture(2)
    assert of(one) == of(one, exif=exif) == of(one, pnginfo=notes)
    assert of(one, exif=exif) != of(other, exif=exif)


@pytest.mark.parametrize("item", [object(), {1, 2}, np.array([object()]), {"a": object()}, 1j])
def test_what_has_no_bytes_of_its_own_is_refused(item):
    with pytest.raises(ValueError, match="an item must be"):
        hash_item("m", "image", item, {})


def test_one_pixel_is_enough():
    image = picture(3)
    other = image.copy()
    red, green, blue = other.getpixel((29, 19))
    other.putpixel((29, 19), (red, green, blue ^ 1))
    assert hash_item("m", "image", image, {}) != hash_item("m", "image", other, {})
