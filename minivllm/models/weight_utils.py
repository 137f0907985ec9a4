"""Reading checkpoint files, one tensor at a time: a model is never twice in memory.

(vLLM: vllm/model_executor/model_loader/weight_utils.py)
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from tqdm.auto import tqdm

from minivllm.config import LOAD_FORMATS
from minivllm.utils.json_files import read_json_object
from minivllm.utils.validation import is_text

_BAR_FORMAT = (  # vLLM's
    "{desc}: {percentage:3.0f}% Completed | {n_fmt}/{total_fmt} "
    "[{elapsed}<{remaining}, {rate_fmt}]\n"
)


@dataclass(frozen=True)
class FileFormat:
    """File names of one checkpoint format."""

    whole: str  # the name if there is one file
    shards: str  # those of several, where no index lists them

    def files(self, directory: Path) -> list[Path]:
        """A checkpoint's files in a directory, in order; none if it has no such checkpoint.

        Raises:
            FileNotFoundError: if the index names a file that is missing.
            ValueError: if the index cannot be read, or names a file that is neither in this
                directory nor in one beside it (``../checkpoint/model.safetensors``).
        """
        index = directory / f"{self.whole}.index.json"
        if not index.is_file():
            whole = directory / self.whole
            return [whole] if whole.is_file() else sorted(directory.glob(self.shards))
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(map(is_text, weight_map.values())):
            raise ValueError(f"{index} cannot be read: it has no weight_map of file names.")
        names = sorted(set(weight_map.values()))
        for name in names:
            if os.path.isabs(name) or os.path.normpath(name).startswith(os.path.join("..", "..")):
                raise ValueError(
                    f"{index} names {name!r}; its files are in its own directory or in one beside "
                    "it."
                )
            if not (directory / name).is_file():
                raise FileNotFoundError(
                    f"{directory / name} is missing, though {index.name} names it."
                )
        return [directory / name for name in names]


FILE_FORMATS = {
    "safetensors": FileFormat("model.safetensors", "*.safetensors"),
    "pt": FileFormat("pytorch_model.bin", "pytorch_model*.bin"),
}


def weights_iterator(
    directory: Path, load_format: str = "auto", use_tqdm: bool = True
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a checkpoint with its name, on the CPU; several files get a progress bar.

    They are views of the files: a part of a tensor is read when it is used, and no more.

    Raises:
        FileNotFoundError: if there is no checkpoint, or a part of it is missing.
        ValueError: if a file is broken, truncated, or holds more than tensors.
    """
    for name in LOAD_FORMATS[load_format]:
        if files := FILE_FORMATS[name].files(directory):
            break
    else:
        wanted = " or ".join(FILE_FORMATS[name].shards for name in LOAD_FORMATS[load_format])
        raise FileNotFoundError(f"model directory {str(directory)!r} has no {wanted} file.")
    read = {"safetensors": _read_safetensors, "pt": _read_pt}[name]
    for file in tqdm(
        files,
        desc=f"Loading {name} checkpoint shards",
        disable=not use_tqdm or len(files) == 1,
        bar_format=_BAR_FORMAT,
    ):
        yield from read(file)


def _read_safetensors(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        with safe_open(file, framework="pt") as shard:
            names = list(shard.keys())
        for name in names:  # opened anew, so that the pages that were read are given back
            with safe_open(file, framework="pt") as shard:
                tensor = shard.get_tensor(name)
            yield name, tensor
    except SafetensorError as error:
        raise ValueError(f"{file} is broken or truncated: {error}") from error


def _read_pt(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    try:  # files from before torch 1.6 are no zip archives and cannot be mapped
        shard = torch.load(
            file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
        )
        if not all(isinstance(tensor, torch.Tensor) for tensor in shard.values()):
            raise ValueError("there are other things than tensors in it")
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"{file} is broken, truncated, or no plain dict of tensors (nothing else is ever "
            f"unpickled): {reason}"
        ) from error
    yield from shard.items()
