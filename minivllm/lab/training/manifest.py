"""manifest.json: origin of the weights beside it."""

import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path

from minivllm.embedded.data.corpus import fingerprint
from minivllm.lab.training.curriculum import Stage

NAME = "manifest.json"


def data_hashes(seed: int, stages: tuple[Stage, ...]) -> dict[str, str]:
    """A hash of each stage's text, which changes whenever the text does."""
    return {stage.name: fingerprint(stage.mixture, f"{seed}-{stage.name}") for stage in stages}


def file_hashes(directory: Path) -> dict[str, str]:
    """SHA-256 of every file of a checkpoint but the manifest, by its path in there."""
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != NAME
    }


def read_manifest(directory: Path) -> dict:
    return json.loads((directory / NAME).read_text(encoding="utf-8"))


def update_manifest(directory: Path, **entries: object) -> None:
    """Replace these entries; the others stay."""
    path = directory / NAME
    manifest = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    manifest.update(entries)
    path.write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def describe_training(
    directory: Path, seed: int, stages: tuple[Stage, ...], progress: dict
) -> None:
    """Write what a training run knows about the checkpoint it has just exported."""
    update_manifest(
        directory,
        seed=seed,
        data=data_hashes(seed, stages),
        training={
            "steps": progress["steps"],
            "steps per stage": progress["steps_per_stage"],
            "tokens": progress["tokens"],
            "minutes": round(progress["seconds"] / 60, 1),
        },
        versions={
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "tokenizers", "safetensors")},
        },
        files=file_hashes(directory),
    )
