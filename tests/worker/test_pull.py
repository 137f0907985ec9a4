"""Pulling a model: wheels that the tests make come through pip, from a folder in a network's place.

No code of a package runs, and whatever goes wrong, nothing half written is left.
"""

import errno
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner

from minivllm import LLM, EngineArgs, SamplingParams
from minivllm.cli import app
from minivllm.models import packages
from minivllm.models import pull as pulling
from minivllm.models.hub import model_directory
from minivllm.models.pull import pull

DESCRIPTION = {
    "title": "a model for tests",
    "source": "https://example.com/model",
    "license": "Apache-2.0",
    "path": "",
}


def make_wheel(folder, package, members):
    """A wheel as an index has it, with these members; installing or importing it would raise."""
    name = package.replace("-", "_")
    info = f"{name}-1.0.dist-info"
    members = members | {
        f"{name}/__init__.py": b"raise SystemExit('code of a package was run')",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        "Requires-Dist: no-such-package\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }  # fmt: skip
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{member},,\n" for member in members))
    sum = sha256(path.read_bytes()).hexdigest()
    return {"package": package, "version": "1.0", "size": path.stat().st_size, "sha256": sum}


class Index:
    """A folder of wheels in an index's place, the short list that asks for them, and a cache."""

    def __init__(self, path, monkeypatch):
        self.wheels, self.cache, self.list = path / "index", path / "cache", {}
        self.wheels.mkdir()
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("MINIVLLM_CACHE_ROOT", str(self.cache))
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(self.wheels))
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setattr(packages, "load_toml", lambda package, name: self.copy())
        packages.packed_models.cache_clear()

    def copy(self):
        return {name: dict(fields) for name, fields in self.list.items()}

    def add(self, name, files, **more):
        """A model of these files; one of several pieces has one in each of several wheels."""
        pieces, listed = {}, []
        for file, content in files.items():
            parts = content if isinstance(content, list) else [content]
            places = [f"{name}_part{i}/data/{file}.part{i}" for i in range(len(parts))]
            for i, part in enumerate(parts):
                pieces.setdefault(i, {})[places[i]] = part
            listed.append({"name": file, "size": len(b"".join(parts)), "pieces": places})
        wheels = [make_wheel(self.wheels, f"{name}-part{i}", pieces[i]) for i in range(len(pieces))]
        self.list[name] = DESCRIPTION | {"wheels": wheels, "files": listed} | more

    def vanish(self):
        """From now on pip gets nothing."""
        self._monkeypatch.setenv("PIP_FIND_LINKS", str(self.wheels / "nowhere"))

    def kept(self):
        """Names of the files in the cache, but for locks."""
        found = self.cache.rglob("*") if self.cache.is_dir() else []
        return sorted(
            str(path.relative_to(self.cache / "models"))
            for path in found
            if path.is_file() and path.suffix != ".lock"
        )


@pytest.fixture
def index(tmp_path, monkeypatch):
    yield Index(tmp_path, monkeypatch)
    packages.packed_models.cache_clear()


def stand_in(tmp_path, monkeypatch, script):
    """A program in Python's place where pip is called: a shell script."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(pulling, "_PIP", [str(program), *pulling._PIP[1:]])


# -- what comes ----------------------------------------------------------------------------------


def test_a_model_is_pulled_once_and_its_pieces_are_joined(index):
    index.add("one", {"model.gguf": [b"first,", b"second"], "sub/config.json": b"{}"})
    said = []
    path = pull("one", say=said.append)
    assert path == index.cache / "models" / "one"
    assert (path / "model.gguf").read_bytes() == b"first,second"
    assert index.kept() == ["one/model.gguf", "one/sub/config.json"]
    assert said[:3] == [
        "one: a model for tests", "  from:    https://example.com/model", "  license: Apache-2.0"
    ]  # fmt: skip
    assert "0 MB, one-part0 1.0, one-part1 1.0" in said[3]
    index.vanish()
    assert pull("one", say=said.append) == path


def test_a_model_that_lost_a_part_is_pulled_again(index):
    index.add("one", {"model.gguf": [b"first,", b"second"]}, path="model.gguf")
    path = pull("one")
    path.write_bytes(b"first")
    with pytest.raises(FileNotFoundError, match="`minivllm pull one` fetches it"):
        model_directory(EngineArgs("one"))
    assert pull("one").read_bytes() == b"first,second"
    assert index.kept() == ["one/model.gguf"]
    assert model_directory(EngineArgs("one")) == path


def test_only_listed_files_leave_a_wheel(index):
    index.add("one", {"model.gguf": b"numbers"})
    evil = {"../../evil": b"1", "/tmp/evil": b"2", "one_part0/data/evil": b"3"}
    members = evil | {"one_part0/data/model.gguf.part0": b"numbers"}
    index.list["one"]["wheels"] = [make_wheel(index.wheels, "one-part0", members)]
    pull("one")
    assert index.kept() == ["one/model.gguf"]
    assert not list(index.cache.parent.rglob("evil"))
    assert not Path("/tmp/evil").exists()


def test_what_a_killed_pull_left_goes_with_the_next(index):
    index.add("one", {"model.gguf": b"numbers"})
    left = index.cache / "models" / ".one.partial" / "files"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"n")
    pull("one")
    assert index.kept() == ["one/model.gguf"]


def test_of_two_pulls_at_once_one_waits_and_finds_the_model(index, tmp_path, monkeypatch):
    index.add("one", {"model.gguf": b"numbers"})
    log = tmp_path / "calls"
    slow = f'echo called >> "{log}"; sleep 1; exec "{sys.executable}" "$@"'
    stand_in(tmp_path, monkeypatch, slow)
    said, paths = [], []
    threads = [
        threading.Thread(target=lambda: paths.append(pull("one", say=said.append)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == [index.cache / "models" / "one"] * 2
    assert log.read_text() == "called\n"
    assert said.count("Another process is pulling one; this one waits for it.") == 1
    assert index.kept() == ["one/model.gguf"]


def test_terms_must_be_agreed_to(index, monkeypatch):
    index.add("one", {"model.gguf": b"numbers"}, terms="https://example.com/terms")
    result = CliRunner().invoke(app, ["pull", "one"])
    assert result.exit_code == 2
    assert "Apache-2.0, https://example.com/terms" in result.stdout
    assert "read https://example.com/terms, and say with --yes" in result.stderr
    assert not index.cache.exists()
    result = CliRunner().invoke(app, ["pull", "one", "--yes"])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == str(index.cache / "models" / "one")


# -- what goes wrong -----------------------------------------------------------------------------


def refused(index, message, name="one"):
    """The command says one sentence, and nothing is left."""
    result = CliRunner().invoke(app, ["pull", name])
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert re.search(message, line)
    assert index.kept() == []


def test_an_unknown_name(index):
    index.add("one", {"model.gguf": b"numbers"})
    refused(index, "name must be one of one, got 'two'", name="two")


def test_no_network(index):
    index.add("one", {"model.gguf": b"numbers"})
    index.vanish()
    refused(index, "pip does not get one-part0==1.0: .*check the network")


def test_no_pip(index, tmp_path, monkeypatch):
    index.add("one", {"model.gguf": b"numbers"})
    command = [sys.executable, "-m", "venv", "--without-pip", tmp_path / "without"]
    subprocess.run(command, check=True)
    python = str(tmp_path / "without" / "bin" / "python")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(pulling, "_PIP", [python, *pulling._PIP[1:]])
    refused(index, "this environment has none; `python -m ensurepip` brings it")


def test_another_sum(index):
    index.add("one", {"model.gguf": [b"first,", b"second"]})
    make_wheel(index.wheels, "one-part1", {"one_part1/data/model.gguf.part1": b"secons"})
    message = r"one_part1-1.0-py3-none-any.whl is not the file .* its SHA-256 sum is \w{64}, not"
    refused(index, message)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"one_part0/model.gguf": b"numbers"}, "another layout: there is no one_part0/data/model"),
        ({"one_part0/data/model.gguf.part0": b"num"}, "model.gguf has 3 bytes, not the 7"),
    ],
)
def test_another_layout(index, members, message):
    index.add("one", {"model.gguf": b"numbers"})
    index.list["one"]["wheels"] = [make_wheel(index.wheels, "one-part0", members)]
    refused(index, message)


def test_no_zip_file(index):
    index.add("one", {"model.gguf": b"numbers"})
    stated = index.list["one"]["wheels"][0]
    stated["sha256"] = sha256(b"<html>").hexdigest()
    (index.wheels / "one_part0-1.0-py3-none-any.whl").write_bytes(b"<html>")
    refused(index, "one_part0-1.0|one-part0==1.0")


def test_pip_brings_nothing(index, tmp_path, monkeypatch):
    index.add("one", {"model.gguf": b"numbers"})
    stand_in(tmp_path, monkeypatch, "exit 0")
    refused(index, r"pip brought no wheel one_part0-1.0, but \[\]")


def test_a_full_disk(index, tmp_path, monkeypatch):
    """While pip writes, and while the model is written."""
    index.add("one", {"model.gguf": b"numbers"})
    message = r"one cannot be kept in .*models: No space left on device \(0 MB are needed"

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        refused(index, message)
    script = 'echo "ERROR: Could not install: [Errno 28] No space left on device" >&2; exit 1'
    stand_in(tmp_path, monkeypatch, script)
    refused(index, message)


def test_a_cache_that_cannot_be_written(index, monkeypatch):
    index.add("one", {"model.gguf": b"numbers"})
    index.cache.write_text("a file")
    refused(index, "one cannot be kept in .*: .*MINIVLLM_CACHE_ROOT names another folder")


# -- short names ---------------------------------------------------------------------------------


def test_a_short_name_loads_what_was_pulled(index, tiny_chat):
    """Also as a tokenizer and as a draft model; a hub is never asked."""
    files = {path.name: path.read_bytes() for path in tiny_chat.iterdir()}
    weights = files["model.safetensors"]
    files["model.safetensors"] = [weights[:1000], weights[1000:]]
    index.add("one", files)
    with pytest.raises(FileNotFoundError, match="'one' is not on this machine yet: `minivllm"):
        LLM("one")
    for command in (["chat", "one", "-q", "Hi"], ["chat", "--model", "one", "-q", "Hi"],
                    ["generate", "Hi", "--model", "one"], ["warm", "one"],
                    ["bench", "throughput", "--model", "one"]):  # fmt: skip
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2
        assert "`minivllm pull one` fetches it" in result.stderr
    pull("one")
    draft = {"model": "one", "num_speculative_tokens": 2}
    llm = LLM("one", tokenizer="one", speculative_config=draft, num_gpu_blocks_override=200)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    same = LLM(str(tiny_chat), num_gpu_blocks_override=200).generate("Hi", params, use_tqdm=False)
    found = llm.generate("Hi", params, use_tqdm=False)
    assert found[0].outputs[0].token_ids == same[0].outputs[0].token_ids
    result = CliRunner().invoke(app, ["chat", "one", "-q", "Hi", "--max-tokens", "3"])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip()
    with pytest.raises(ValueError, match="revision='v2' chooses among a hub's versions"):
        LLM("one", revision="v2")


def test_a_directory_of_that_name_wins(index, tiny_chat, tmp_path, monkeypatch):
    index.add("one", {"model.gguf": b"numbers"})
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_chat, "one")
    assert model_directory(EngineArgs("one")) == Path("one")
    pull("one")
    assert model_directory(EngineArgs("one")) == Path("one")


def test_the_short_list_says_what_a_wheel_must_be():
    """Versions and sums are fixed, and no name leads out of the model's folder."""
    packages.packed_models.cache_clear()
    models = packages.packed_models()
    assert {"smollm2", "minilm", "gemma3"} <= set(models)
    for model in models.values():
        assert all(len(wheel.sha256) == 64 and wheel.size > 10_000 for wheel in model.wheels)
        assert not [file for file in model.files if ".." in file.name or file.name.startswith("/")]
        assert model.path in {"", *(file.name for file in model.files)}
        roots = {wheel.package.replace("-", "_") for wheel in model.wheels}
        assert {piece.split("/")[0] for file in model.files for piece in file.pieces} <= roots
