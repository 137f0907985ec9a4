"""Items of ``multi_modal_data``: by modality a list, each item in the form that processors read.

(vLLM: ``MultiModalDataParser`` in vllm/multimodal/parse.py)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minivllm.config.multimodal import MODALITIES
from minivllm.multimodal.audio import audio_item
from minivllm.multimodal.image import image_item
from minivllm.utils.validation import check, is_one_of, is_text, shown


def items_of(data: Any, uuids: Any = None) -> dict[str, list]:
    """Split ``multi_modal_data`` into items, as they were given; of some modality none: no key.

    Args:
        data: by modality an item or a list of items; None is an item that its uuid names.
        uuids: the prompt's ``multi_modal_uuids``.

    Raises:
        ValueError: for another type, or a modality that there is not.
    """
    ok = data is None or isinstance(data, Mapping)
    check(ok, "multi_modal_data", data, "a dict of items by modality, as {'image': image}")
    items = {}
    for modality, given in (data or {}).items():
        _check_modality("multi_modal_data", modality)
        names = uuids.get(modality) if isinstance(uuids, Mapping) else None
        if given is None and names:
            items[modality] = [None] if isinstance(names, str) else [None for _ in names]
        elif given is not None and (found := _split(modality, given)):
            items[modality] = found
    return items


def uuids_of(uuids: Any, items: dict[str, list]) -> dict[str, list[str | None]]:
    """Split ``multi_modal_uuids``: by modality one for each item, or None.

    Raises:
        ValueError: for another type or number, or an item that has neither data nor a uuid.
    """
    ok = uuids is None or isinstance(uuids, Mapping)
    check(ok, "multi_modal_uuids", uuids, "a dict of uuids by modality, as {'image': 'cat'}")
    for modality in uuids or {}:
        _check_modality("multi_modal_uuids", modality)
        ok = modality in items or not uuids[modality]
        check(ok, f"multi_modal_uuids[{modality!r}]", uuids[modality], "None without such an item")
    found = {}
    for modality, of_modality in items.items():
        given = (uuids or {}).get(modality)
        name = f"multi_modal_uuids[{modality!r}]"
        names = [given] if given is None or isinstance(given, str) else given
        if given is None:
            names = [None] * len(of_modality)
        check(isinstance(names, (list, tuple)), name, given, "a string, or a list of them")
        ok = len(names) == len(of_modality)
        check(ok, f"len({name})", len(names), f"{len(of_modality)}, one for each item")
        for item, uuid in zip(of_modality, names, strict=True):
            ok = uuid is None or (is_text(uuid) and uuid != "")
            check(ok, f"every one of {name}", uuid, "a non-empty string, or None")
            if item is None and uuid is None:
                raise ValueError(f"an item of modality {modality} has neither data nor a uuid.")
        found[modality] = list(names)
    return found


def parse_item(modality: str, item: Any) -> Any:
    """An item in the form that processors read.

    Args:
        modality: of the item.
        item: an image as ``image_item`` takes it; of a video its frames, a list of images or an
            array ``[frames, height, width, channels]``; a sound as ``audio_item`` takes it.

    Raises:
        ValueError: for what is none.
    """
    if modality == "image":
        return image_item(item)
    if modality == "audio":
        return audio_item(item)
    frames = item[0] if isinstance(item, tuple) else item  # the rest says where it comes from
    if not hasattr(frames, "__len__") or len(frames) == 0:
        raise ValueError(f"a video must be a list of frames, got {shown(item)}")
    return [image_item(frame) for frame in frames]


def _check_modality(name: str, modality: Any) -> None:
    ok = is_one_of(modality, MODALITIES)
    check(ok, f"a modality in {name}", modality, f"one of {', '.join(MODALITIES)}")


def _split(modality: str, given: Any) -> list:
    """The items of a modality: one that is given alone, or each of a list."""
    is_one = {"image": _is_image, "video": _is_video, "audio": _is_audio}[modality]
    if is_one(given) or not hasattr(given, "__len__"):
        return [given]
    return list(given)


def _ndim(value: Any) -> int:
    return len(value.shape) if hasattr(value, "shape") else 0


def _is_image(value: Any) -> bool:
    """True for what is one image: of PIL, or an array of three dimensions, not four."""
    return not isinstance(value, (list, tuple)) and _ndim(value) != 4


def _is_video(value: Any) -> bool:
    """True for what is one video: its frames, or these and where they come from."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Mapping):
        return True
    if isinstance(value, (list, tuple)):
        return len(value) > 0 and all(hasattr(one, "convert") or _ndim(one) == 3 for one in value)
    return _ndim(value) == 4


def _is_audio(value: Any) -> bool:
    """True for what is one sound: samples, or these and their rate."""
    if isinstance(value, tuple):
        return len(value) == 2 and not isinstance(value[1], tuple) and _ndim(value[1]) == 0
    if isinstance(value, list):
        return len(value) > 0 and all(isinstance(one, (int, float)) for one in value)
    return _ndim(value) != 2  # of one without a rate, as in vLLM, each row is a sound
