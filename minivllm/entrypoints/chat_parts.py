"""ChatMedia: pictures and sounds in a conversation's parts, and how a template sees them.

(vLLM: ``MultiModalItemTracker`` and the parsers of parts in vllm/renderers/chat_utils.py)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minivllm.engine.input_processor import InputProcessor
from minivllm.logger import init_logger
from minivllm.multimodal.media import MediaUrl
from minivllm.multimodal.placeholders import with_own_placeholders
from minivllm.utils.validation import check, is_one_of, is_text

logger = init_logger(__name__)

# Types of parts, which are the keys of what they hold, too; of input_image that is image_url.
MEDIA_PARTS = {
    "image_url": "image",
    "input_image": "image",
    "image_pil": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "video_url": "video",
}


@dataclass(frozen=True)
class MediaPart:
    """A part of a message that is no text.

    Args:
        modality: of its item.
        item: the item, or its place; None: its uuid names it.
        uuid: by which a program calls it.
    """

    modality: str
    item: Any
    uuid: str | None = None


@dataclass
class ChatMedia:
    """Items of a conversation, collected in the order of its parts.

    Args:
        placeholders: the model's, by modality; empty: it takes no items.
        interleave: in a template that takes text, placeholders stay where their parts are.
        model_name: for the error of a model that takes none.
    """

    placeholders: Mapping[str, str] = field(default_factory=dict)
    interleave: bool = False
    model_name: str = "this model"
    items: dict[str, list[Any]] = field(default_factory=dict)
    uuids: dict[str, list[str | None]] = field(default_factory=dict)
    _numbered: Counter[str] = field(default_factory=Counter)  # placeholders such as <|image_1|>

    @classmethod
    def of(cls, processor: InputProcessor, model_name: str) -> ChatMedia:
        """An empty collection for one conversation.

        Args:
            processor: of the engine.
            model_name: as its user knows it.
        """
        multimodal = processor.multimodal
        if multimodal is None:
            return cls(model_name=model_name)
        return cls(multimodal.placeholders, multimodal.config.interleave_mm_strings, model_name)

    def add(self, part: MediaPart) -> None:
        """Collect an item. Raises ``ValueError`` if the model takes none of its modality."""
        if not self.placeholders:
            raise ValueError(f"{self.model_name} is not a multimodal model")
        if part.modality not in self.placeholders:
            taken = ", ".join(self.placeholders)
            raise ValueError(f"this model takes no {part.modality}; it takes {taken}")
        self.items.setdefault(part.modality, []).append(part.item)
        self.uuids.setdefault(part.modality, []).append(part.uuid)

    def text_of(self, parts: list[str | MediaPart]) -> str:
        """Text of a message for a template that takes text, with a placeholder for each item.

        Those that its text does not have come first, each on its own line, as in vLLM.

        Raises:
            ValueError: if the text has more placeholders than the message has items.
        """
        media = [part for part in parts if isinstance(part, MediaPart)]
        for part in media:
            self.add(part)
        lines = [
            self.placeholders[part.modality] if isinstance(part, MediaPart) else part
            for part in parts
            if self.interleave or isinstance(part, str)
        ]
        text = self._with_own_placeholders("\n".join(filter(None, lines)))
        if not media:
            return text
        missing = []
        for modality, count in Counter(part.modality for part in media).items():
            own = self.placeholders[modality]
            found = text.count(own)
            if found > count:
                raise ValueError(
                    f"a message has {found} placeholders {own} in its text, but {count} "
                    f"{modality}{'s' * (count != 1)}; it needs one for each"
                )
            missing += [own] * (count - found)
        return "\n".join([*missing, text])

    def parts_of(self, parts: list[str | MediaPart]) -> list[dict[str, str]]:
        """Parts of a message for a template that loops over them."""
        shown = []
        for part in parts:
            if isinstance(part, MediaPart):
                self.add(part)
                shown.append({"type": part.modality})
            else:
                shown.append({"type": "text", "text": self._with_own_placeholders(part)})
        return shown

    def _with_own_placeholders(self, text: str) -> str:
        return with_own_placeholders(text, self.placeholders, self._numbered)


def media_part(part: Any) -> MediaPart | None:
    """The item of a part; None if it is a text, or none at all.

    Raises:
        ValueError: for an item without a place, or a uuid that is none.
    """
    if not isinstance(part, dict):
        return None
    kind = part.get("type")
    if kind is None:  # vLLM's short form: {"image_url": "https://..."}
        kind = next((key for key in part if is_one_of(key, MEDIA_PARTS)), None)
    if kind is None or not is_one_of(kind, MEDIA_PARTS):
        return None
    uuid = part.get("uuid")
    check(uuid is None or (is_text(uuid) and uuid != ""), "uuid", uuid, "a non-empty string")
    key = "image_url" if kind == "input_image" else kind
    item = _item(kind, key, part.get(key), is_short="type" not in part)
    if item is None and uuid is None:
        raise ValueError(f"a part of type {kind} needs {key}, or a uuid of an earlier item")
    return MediaPart(MEDIA_PARTS[kind], item, uuid)


def _item(kind: str, key: str, value: Any, is_short: bool) -> Any:
    """What a part holds: an item of the program's own, or a place."""
    if value is None or kind == "image_pil":
        return value
    if kind == "input_audio":
        ok = isinstance(value, dict) and is_text(value.get("data"))
        check(ok, key, value, "a dict with data in base64, and its format")
        return MediaUrl(f"data:audio/wav;base64,{value['data']}")
    if isinstance(value, dict):
        if value.get("detail") not in (None, "auto"):
            logger.warning("'image_url.detail' is currently not supported and will be ignored.")
        value = value.get("url")
    elif not (is_short or kind == "input_image"):
        check(False, key, value, "a dict with a url")
    check(is_text(value), f"the url of {key}", value, "a string without lone surrogates")
    return MediaUrl(value)
