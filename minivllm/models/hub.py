"""Model directories: a local one or a GGUF file, a model that was pulled, or one from a hub.

(vLLM: vllm/model_executor/model_loader/weight_utils.py, ``download_weights_from_hf``)
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from minivllm import envs
from minivllm.config import LOAD_FORMATS
from minivllm.embedded import embedded_model_path
from minivllm.models.packages import packed_models, pulled_model
from minivllm.models.weight_utils import FILE_FORMATS
from minivllm.utils.validation import shown

_CONFIG_AND_TOKENIZER = ["*.json", "*.txt", "*.model", "*.jinja"]
# other people's formats of the same weights
_NOT_WANTED = ["original/*", "metal/*", "onnx/*", "consolidated*", "training_args.bin"]
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


class ModelSource(Protocol):
    """The fields of ``EngineArgs`` that say where a model comes from."""

    model: str | None
    revision: str | None
    tokenizer: str | None
    tokenizer_revision: str | None
    download_dir: str | None
    load_format: str
    generation_config: str


def model_directory(args: ModelSource) -> Path:
    """The directory of ``args.model``, downloaded from a hub if it is a name and not here yet.

    A short name such as "smollm2" is one of ``packages.toml``, and no hub is asked for it. The hub
    is Hugging Face's, or ModelScope with MINIVLLM_USE_MODELSCOPE. With ``load_format="dummy"`` the
    weights stay there.

    Raises:
        FileNotFoundError: if there is no such directory and it cannot be downloaded.
        ValueError: if a revision is asked of a directory.
    """
    if args.model is None:
        return embedded_model_path()
    return _directory("model", args.model, args.revision, args.download_dir, args.load_format)


def draft_model_directory(args: ModelSource, name: str | os.PathLike) -> Path:
    """The directory of a draft model for ``args.model``. Raises like ``model_directory``."""
    return _directory("speculative model", name, None, args.download_dir, args.load_format)


def tokenizer_directory(args: ModelSource, model_directory: Path) -> Path:
    """The tokenizer's directory: the model's, unless another tokenizer or revision is given.

    Raises like ``model_directory``.
    """
    if args.tokenizer is None and args.tokenizer_revision is None:
        return model_directory
    name = args.tokenizer or args.model or model_directory
    return _directory("tokenizer", name, args.tokenizer_revision, args.download_dir, "dummy")


def generation_directory(args: ModelSource) -> Path | None:
    """The directory of another generation_config.json; None: the model's own.

    Raises like ``model_directory``, and if it has no such file.
    """
    if args.generation_config in ("auto", "vllm"):
        return None
    what = "generation_config"
    directory = _directory(what, args.generation_config, None, args.download_dir, "dummy")
    if not (directory / "generation_config.json").is_file():
        raise FileNotFoundError(f"{what} {str(directory)!r} has no generation_config.json.")
    return directory


def _directory(
    what: str,
    name: str | os.PathLike,
    revision: str | None,
    download_dir: str | None,
    load_format: str,
) -> Path:
    is_here = _is_here(name)
    is_packed = str(name) in packed_models()
    if is_here or is_packed:
        if revision is not None:
            raise ValueError(
                f"revision={revision!r} chooses among a hub's versions of a {what}, but "
                f"{str(name)!r} is on this machine; leave it out."
            )
        return Path(name) if is_here else pulled_model(str(name))
    if not _HUB_NAME.fullmatch(str(name)) or str(name).endswith(".gguf"):
        raise FileNotFoundError(
            f"{what} {shown(str(name))} is not a directory; give the path of a Hugging Face model "
            "directory or of a GGUF file, a name like 'Qwen/Qwen3-0.6B', or no model at all for "
            "the embedded one."
        )
    hub, download = _hub()
    options = {"revision": revision, "cache_dir": download_dir, "ignore_patterns": _NOT_WANTED}
    fetch = partial(download, str(name), **options)
    try:
        directory = Path(fetch(allow_patterns=_CONFIG_AND_TOKENIZER))
        for file_format in LOAD_FORMATS[load_format]:
            fetch(allow_patterns=[FILE_FORMATS[file_format].shards])
            if FILE_FORMATS[file_format].files(directory):
                break
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise FileNotFoundError(
            f"{what} {shown(str(name))} is not a directory here, and {hub} does not give it: "
            f"{reason} (check name, revision, network, and whether it needs a token)."
        ) from error
    return directory


def _is_here(name: str | os.PathLike) -> bool:
    """True for a directory or a GGUF file of this machine."""
    try:
        path = Path(name)
        return path.is_dir() or (path.suffix == ".gguf" and path.is_file())
    except (OSError, ValueError):  # longer than a file name can be, or with a NUL in it
        return False


def _hub() -> tuple[str, Callable[..., str]]:
    """The hub's name and its function ``snapshot_download``."""
    if not envs.use_modelscope():
        from huggingface_hub import snapshot_download

        return "the Hugging Face hub", snapshot_download
    try:
        from modelscope.hub.snapshot_download import snapshot_download as from_modelscope
    except ImportError as error:
        raise ValueError(
            "MINIVLLM_USE_MODELSCOPE needs the package 'modelscope'; pip install modelscope."
        ) from error
    return "ModelScope", from_modelscope
