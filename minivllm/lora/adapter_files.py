"""The two files of an adapter, each read once: the bytes that are checked are those that are used.

Sizes are checked before memory is asked for, and nothing in a file is executed.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickletools
import zipfile
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch

_PICKLED = {  # the names that torch.save writes for plain tensors
    "collections OrderedDict", "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter",
    "torch FloatStorage", "torch HalfStorage", "torch BFloat16Storage",
}  # fmt: skip


@dataclass(frozen=True)
class AdapterFile:
    """A file's name and its bytes."""

    path: Path
    data: bytes

    @classmethod
    def read(cls, path: Path, max_bytes: int) -> AdapterFile:
        """Read a file.

        Raises:
            OSError: if it cannot be opened or read.
            ValueError: if it is larger than ``max_bytes``.
        """
        if not path.is_file():
            raise FileNotFoundError(path)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > max_bytes:
                raise ValueError(f"{path} has {size} bytes; at most {max_bytes} are read.")
            data = file.read(size)
        return cls(path, data)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of a file of weights, on the CPU.

        Raises:
            ValueError: if it is broken, truncated, or holds more than plain tensors.
        """
        try:
            if self.path.suffix == ".safetensors":
                return safetensors.torch.load(self.data)
            return _load_pt(self.data)
        except Exception as error:
            reason = str(error).strip().split("\n")[0] or repr(error)
            raise ValueError(
                f"{self.path} is broken, truncated, or holds more than plain tensors: {reason}"
            ) from error


def digest(*files: AdapterFile) -> str:
    """SHA-256 of files, in hexadecimal."""
    total = hashlib.sha256()
    for file in files:
        total.update(hashlib.sha256(file.data).digest())
    return total.hexdigest()


def _load_pt(data: bytes) -> dict[str, torch.Tensor]:
    """Tensors of a file that ``torch.save`` wrote, which is a zip archive with a pickle in it."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > len(data):
            raise ValueError("its parts would be larger than the file")
        for member in members:
            if member.filename.endswith(".pkl"):
                _check_pickle(archive.read(member))
    tensors = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    ok = isinstance(tensors, dict) and all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor)
        for name, tensor in tensors.items()
    )
    if not ok:
        raise ValueError("it is no dict of names and tensors")
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _check_pickle(data: bytes) -> None:
    """Refuse names with which even ``weights_only`` would make something large or strange."""
    for opcode, name, _ in pickletools.genops(data):
        if opcode.name == "GLOBAL" and name not in _PICKLED:
            raise ValueError(f"its pickle names {name!r}")
