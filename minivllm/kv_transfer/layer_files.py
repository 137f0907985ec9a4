"""LayerFiles: a worker's reading and writing of prompts' K and V, beside its steps.

Threads touch files and memory of their own, never the KV cache: blocks are copied out of it and
into it by the worker itself, between two steps. So a block that is given to another request in the
meantime holds nothing of a transfer that was dropped.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import torch

from minivllm.kv_transfer.base import KVConnectorOutput
from minivllm.logger import init_logger

logger = init_logger(__name__)

_THREADS = 4
Tensors = dict[str, torch.Tensor]


class Transfer(Protocol):
    """Transfer of a prompt; see ``PromptTransfer``."""

    seq_id: str
    name: str
    block_ids: list[int]
    first_block: int
    num_tokens: int


class LayerFiles:
    """Files of one rank: for each prompt a folder with a file for each layer.

    Args:
        folder: where prompts' folders are.
        rank: of the worker.
        load_timeout: seconds that promised files may take to come.
        keep_for: seconds after which files that were not used are deleted.
    """

    def __init__(self, folder: Path, rank: int, load_timeout: float, keep_for: float):
        self.folder = folder
        self.rank = rank
        self.load_timeout = load_timeout
        self.keep_for = keep_for
        self.layers: Mapping[str, Mapping[str, torch.Tensor]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="minivllm-kv")
        self._promised: list[tuple[Transfer, float]] = []  # and until when it is waited for
        self._loads: list[tuple[Transfer, Future[dict[str, Tensors]]]] = []
        self._saves: list[tuple[Transfer, Future[None]]] = []
        self._next_sweep = time.monotonic()

    def rank_folder(self, name: str) -> Path:
        """The folder of a prompt's files of this rank."""
        return self.folder / name / f"rank_{self.rank}"

    # -- reading -----------------------------------------------------------------------------------

    def load(self, transfer: Transfer) -> None:
        """Read a prompt's files as soon as they are there."""
        self._promised.append((transfer, time.monotonic() + self.load_timeout))

    def _read(self, transfer: Transfer) -> dict[str, Tensors]:
        """Read all layers of a prompt, from its first block that is asked for on."""
        from safetensors.torch import load_file

        folder = self.rank_folder(transfer.name)
        read = {}
        for layer, caches in self.layers.items():
            tensors = load_file(folder / f"{layer}.safetensors")
            for part, cache in caches.items():
                shape = (len(transfer.block_ids), *cache.shape[1:])
                found = tensors.get(part)
                if found is None or found.shape != shape or found.dtype != _stored(cache).dtype:
                    raise ValueError(
                        f"{part} of {layer} is {_form(found)}, not of this cache's form"
                    )
            read[layer] = {part: tensors[part][transfer.first_block :] for part in caches}
        os.utime(self.folder / transfer.name)
        return read

    def _put(self, transfer: Transfer, read: dict[str, Tensors]) -> None:
        """Put what was read into a prompt's blocks."""
        block_ids = torch.tensor(transfer.block_ids[transfer.first_block :])
        for layer, tensors in read.items():
            for part, blocks in tensors.items():
                cache = _stored(self.layers[layer][part])
                cache[block_ids.to(cache.device)] = blocks.to(cache.device)

    # -- writing -----------------------------------------------------------------------------------

    def save(self, transfer: Transfer) -> None:
        """Copy a prompt's blocks out of the cache, and write them."""
        if self.rank_folder(transfer.name).is_dir():  # the same prompt was sent before
            self._saves.append((transfer, _done()))
            return
        block_ids = torch.tensor(transfer.block_ids)
        copied: dict[str, Tensors] = {}
        for layer, caches in self.layers.items():
            copied[layer] = {}
            for part, cache in caches.items():
                stored = _stored(cache)
                blocks = stored[block_ids.to(stored.device)].cpu()
                # behind the prompt is what was generated: the name says nothing of it
                blocks.flatten(0, 1)[transfer.num_tokens :] = 0
                copied[layer][part] = blocks
        self._saves.append((transfer, self._threads.submit(self._write, transfer, copied)))

    def _write(self, transfer: Transfer, copied: dict[str, Tensors]) -> None:
        """Write all layers into a folder beside, and let it appear whole."""
        from safetensors.torch import save_file

        target = self.rank_folder(transfer.name)
        unfinished = target.with_name(f"unfinished_{self.rank}_{os.getpid()}_{id(copied)}")
        try:
            unfinished.mkdir(parents=True)
            for layer, tensors in copied.items():
                save_file(tensors, unfinished / f"{layer}.safetensors")
            os.utime(target.parent)
            if not target.is_dir():
                os.rename(unfinished, target)
        except OSError:
            if not target.is_dir():  # another one may have been quicker
                raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    # -- between two steps -------------------------------------------------------------------------

    def take_ended(self) -> KVConnectorOutput:
        """Put what has been read into its blocks. Returns the transfers that have ended."""
        output = KVConnectorOutput()
        self._start_promised(output)
        for transfer, future in _take_done(self._loads):
            try:
                self._put(transfer, future.result())
                output.finished_recving.add(transfer.seq_id)
            except Exception as error:
                output.failed_recving[transfer.seq_id] = f"its files cannot be read: {error}"
                if future.exception() is not None:  # the next sender would take them for whole
                    shutil.rmtree(self.folder / transfer.name, ignore_errors=True)
        for transfer, future in _take_done(self._saves):
            output.finished_sending.add(transfer.seq_id)
            if (failure := future.exception()) is not None:
                logger.warning("K and V of request %s were not sent: %s", transfer.seq_id, failure)
                shutil.rmtree(self.folder / transfer.name, ignore_errors=True)
        for seq_id, reason in output.failed_recving.items():
            logger.warning("K and V of request %s do not come: %s", seq_id, reason)
        self._sweep()
        return output

    def _start_promised(self, output: KVConnectorOutput) -> None:
        """Start to read files that have come by now; give up those that are late."""
        now = time.monotonic()
        waiting = []
        for transfer, until in self._promised:
            if self.rank_folder(transfer.name).is_dir():
                self._loads.append((transfer, self._threads.submit(self._read, transfer)))
            elif not (self.folder / transfer.name).is_dir():
                output.failed_recving[transfer.seq_id] = "its files are gone"
            elif now > until:
                reason = f"they were promised, and have not come within {self.load_timeout} s"
                output.failed_recving[transfer.seq_id] = reason
            else:
                waiting.append((transfer, until))
        self._promised = waiting

    def forget_loads(self) -> None:
        """Drop what is being read: the blocks for it are others' from now on."""
        self._promised.clear()
        self._loads.clear()
        self._saves.clear()

    def _sweep(self) -> None:
        """Delete, now and then, the prompts' folders that were not used for a while."""
        now = time.monotonic()
        if self.rank != 0 or now < self._next_sweep:
            return
        self._next_sweep = now + self.keep_for / 4
        self._threads.submit(sweep, self.folder, self.keep_for)

    def shutdown(self) -> None:
        """Write what has been begun, and end the threads."""
        self._threads.shutdown(wait=True, cancel_futures=False)


def sweep(folder: Path, keep_for: float) -> None:
    """Delete prompts' folders that were not used for this many seconds."""
    for path in folder.glob("[0-9a-f]" * 64):
        try:
            if time.time() - path.stat().st_mtime > keep_for:
                shutil.rmtree(path)
        except OSError:  # another engine was quicker
            continue


def _take_done(transfers: list[tuple[Transfer, Future]]) -> list[tuple[Transfer, Future]]:
    """Take the transfers out of a list whose threads have done their part."""
    done = [(transfer, future) for transfer, future in transfers if future.done()]
    transfers[:] = [(transfer, future) for transfer, future in transfers if not future.done()]
    return done


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


def _stored(cache: torch.Tensor) -> torch.Tensor:
    """A cache's numbers as what can be indexed and written to files: 8 bits as bytes."""
    return cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache


def _form(tensor: torch.Tensor | None) -> str:
    return "absent" if tensor is None else f"{tuple(tensor.shape)} of {tensor.dtype}"
