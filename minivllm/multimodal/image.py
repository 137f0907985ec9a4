"""Pictures: from bytes, and from what a program gives, to RGB. PIL is imported when one comes.

(vLLM: vllm/multimodal/media/image.py, vllm/multimodal/image.py)
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

from minivllm.multimodal.errors import MediaError
from minivllm.utils.validation import check, shown

MOST_PIXELS = 89_478_485  # beyond these PIL warns of a decompression bomb
# The longer side over the shorter one. Models cut or shrink a picture after its shorter side has
# got their size, so a thin line would become gigabytes.
MOST_ASPECT = 200
# No program is started for any of these, as PIL starts Ghostscript for PostScript.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_CHANNELS = (1, 3, 4)
_WHITE = (255, 255, 255)


def import_pillow() -> Any:
    """The module ``PIL.Image``.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ValueError(
            "a picture needs pillow, which is not installed: pip install 'minivllm[multimodal]'"
        ) from error
    return Image


def read_image(data: bytes, image_mode: str = "RGB", rgba_background_color: Any = _WHITE) -> Any:
    """Decode a picture from somewhere else.

    Args:
        data: a file in one of the formats that PIL reads by itself.
        image_mode, rgba_background_color: see ``to_mode``.

    Raises:
        MediaError: if it is none, is broken or too large.
        ValueError: without pillow.
    """
    Image = import_pillow()
    try:
        image = Image.open(BytesIO(data), formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise _too_many_pixels() from error
    except Exception as error:
        raise MediaError("it is no picture in a known format") from error
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise _too_many_pixels()
    try:
        check_sides(width, height)
        return to_mode(image, image_mode, rgba_background_color)
    except MediaError:
        raise
    except Exception as error:  # decoders raise what they like
        raise _broken() from error


def to_mode(image: Any, mode: str = "RGB", background: Any = _WHITE) -> Any:
    """A picture of PIL in another mode; RGBA becomes RGB over a background.

    Args:
        image: a picture, perhaps not read yet.
        mode: PIL's name of the mode.
        background: three bytes.
    """
    image.load()
    if image.mode == mode:
        return image
    if image.mode == "RGBA" and mode == "RGB":
        flat = import_pillow().new("RGB", image.size, tuple(background))
        flat.paste(image, mask=image.getchannel("A"))
        return flat
    return image.convert(mode)


def check_sides(width: int, height: int) -> None:
    """Raise ``MediaError`` for a picture without pixels, or that is nearly a line."""
    if min(width, height) < 1:
        raise MediaError(f"a picture needs pixels, but this one is {width} x {height}")
    if max(width, height) > MOST_ASPECT * min(width, height):
        raise MediaError(
            f"a picture may be {MOST_ASPECT} times as long as it is wide, but this one is "
            f"{width} x {height}"
        )


def image_item(item: Any) -> Any:
    """A picture that a program gives, as one of PIL in RGB.

    Args:
        item: a picture of PIL; or an array or tensor ``[height, width, channels]`` or
            ``[channels, height, width]`` of bytes, or of numbers from 0 to 1.

    Raises:
        ValueError: for what is none.
    """
    import_pillow()
    if hasattr(item, "convert") and hasattr(item, "getpalette"):
        check_sides(*item.size)
        try:
            return to_mode(item)
        except Exception as error:
            raise _broken() from error
    if not hasattr(item, "__array__"):
        raise ValueError(f"it must be a picture of PIL or an array, got {shown(item)}")
    return to_mode(_picture_of_array(item))


def _picture_of_array(item: Any) -> Any:
    import numpy as np

    array = np.asarray(item)
    form = "[height, width, channels] or [channels, height, width] with 1, 3 or 4 channels"
    ok = array.ndim == 3 and not {array.shape[0], array.shape[2]}.isdisjoint(_CHANNELS)
    check(ok, "an array", list(array.shape), form)
    if array.shape[2] not in _CHANNELS:
        array = array.transpose(1, 2, 0)
    height, width, channels = array.shape
    check_sides(width, height)
    if array.dtype.kind == "f":
        ok = bool(((array >= 0) & (array <= 1)).all())  # a NaN is neither
        check(ok, "an array of floats", shown(array.ravel()[:4]), "numbers from 0 to 1 everywhere")
        array = (array * 255).round().astype(np.uint8)
    check(array.dtype == np.uint8, "the type of an array", str(array.dtype), "uint8 or a float")
    array = array[..., 0] if channels == 1 else array
    return import_pillow().fromarray(np.ascontiguousarray(array))


def _broken() -> MediaError:
    return MediaError("it is a broken picture: it cannot be decoded to its end")


def _too_many_pixels() -> MediaError:
    return MediaError(f"it may have {MOST_PIXELS:,} pixels")
