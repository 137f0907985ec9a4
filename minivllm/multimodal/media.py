"""MediaConnector: reads the item behind a data URI, a file or a URL. All but data is closed.

A request may name files and hosts, and this machine can reach more of them than its author. So a
file is read only below one directory, and a host is asked only if the operator has named it.
(vLLM: ``MediaConnector`` in vllm/multimodal/media/connector.py, where every host is open by
default)
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from minivllm.config.multimodal import MultiModalConfig
from minivllm.multimodal.audio import read_audio
from minivllm.multimodal.download import MOST_BYTES, Network, download, too_large
from minivllm.multimodal.errors import MediaError
from minivllm.multimodal.image import read_image
from minivllm.utils.validation import is_text


@dataclass(frozen=True)
class MediaUrl:
    """An item by its place: ``data:`` with base64, a path, ``file:``, ``http:`` or ``https:``."""

    url: str


class MediaConnector:
    """Reader of items that conversations name.

    Args:
        config: the directory and the hosts that are allowed, and how items are read.
        network: resolves names and connects; a test gives its own.
    """

    def __init__(self, config: MultiModalConfig, network: Network | None = None):
        self.config = config
        self.network = network or Network()

    def fetch(
        self, modality: str, place: MediaUrl, media_io_kwargs: dict[str, dict[str, Any]]
    ) -> Any:
        """Read an item.

        Args:
            modality: of the item.
            place: where it is.
            media_io_kwargs: see ``MultiModalConfig``; these win.

        Returns:
            A picture of PIL, or of a sound its samples and their rate.

        Raises:
            MediaError: if it may not be read, or cannot be.
        """
        data = self.load_bytes(place.url)
        if modality == "image":
            options = self.config.media_io_kwargs.get("image", {})
            return read_image(data, **options | media_io_kwargs.get("image", {}))
        if modality == "audio":
            return read_audio(data)
        raise MediaError("a video is given as its frames, each of them a picture")

    def load_bytes(self, url: str) -> bytes:
        """The bytes of an item. Raises like ``fetch``."""
        if not is_text(url) or url == "":
            raise MediaError("its URL must be a string that is not empty")
        scheme = url.partition(":")[0].lower() if ":" in url else ""
        if scheme == "data":
            return _decode(url)
        if scheme in ("http", "https"):
            if not self.config.allowed_media_domains:
                raise MediaError("no host is allowed; it would need --allowed-media-domains")
            return download(url, self.config.allowed_media_domains, self.network)
        if scheme == "file":
            return self._read_file(_path_of(url))
        if "://" in url:
            raise MediaError("its URL must begin with data:, file:, http: or https:, or be a path")
        return self._read_file(url)

    def _read_file(self, path: str) -> bytes:
        """Read a file. One that is not below the directory is refused, be it there or not."""
        allowed = self.config.allowed_local_media_path
        if not allowed:
            raise MediaError("no file is allowed; it would need --allowed-local-media-path")
        try:
            resolved = Path(path).resolve()
            if not resolved.is_relative_to(allowed):
                raise MediaError("its file is not below --allowed-local-media-path")
            if not resolved.is_file():  # a pipe would be waited for
                raise MediaError("there is no such file")
            with resolved.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        except MediaError:
            raise
        except (OSError, ValueError, RuntimeError) as error:  # names that cannot be, and circles
            raise MediaError("its file cannot be read") from error
        if len(data) > MOST_BYTES:
            raise too_large()
        return data


def _path_of(url: str) -> str:
    """The path in a ``file:`` URL. Raises ``MediaError`` for one of another machine."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise MediaError("its URL cannot be read") from error
    if parts.netloc not in ("", "localhost"):
        raise MediaError("its URL names a file of another machine")
    return unquote(parts.path)


def _decode(url: str) -> bytes:
    """The bytes of a data URI."""
    head, comma, data = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise MediaError("its data URI must be in base64: data:image/png;base64,...")
    if len(data) * 3 // 4 > MOST_BYTES + 2:
        raise too_large()
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MediaError("its data URI is not valid base64") from error
