"""ExampleConnector: K and V of prompts as files in a folder that several engines see.

In ``/dev/shm`` the folder is shared memory, on a network share it reaches other machines. A prompt
has a folder of its own, named by its content, and in it a folder for each rank with a file for each
layer. The prompt's folder appears when an engine promises its K and V; a rank's folder appears when
it is whole, and not before: no half file is ever read.
(vLLM: vllm/distributed/kv_transfer/kv_connector/v1/example_connector.py)
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minivllm.kv_transfer.base import (
    KVConnectorBase,
    KVConnectorMetadata,
    KVConnectorOutput,
    KVConnectorRole,
)
from minivllm.kv_transfer.prompt_name import cache_form, prompt_name
from minivllm.request import Request, RequestStatus, Sequence
from minivllm.utils.math_utils import cdiv
from minivllm.utils.validation import check, is_number

if TYPE_CHECKING:
    from minivllm.kv_transfer.layer_files import LayerFiles

DEFAULT_FOLDER = "/tmp"  # as in vLLM
_SETTINGS = {  # of kv_connector_extra_config, with their defaults; seconds
    "shared_storage_path": DEFAULT_FOLDER,
    "load_timeout": 30.0,  # until K and V that were promised are there
    "keep_for": 600.0,  # files that were not read since are deleted
}


@dataclass(frozen=True)
class PromptTransfer:
    """Blocks of one prompt that are to be read from files, or written to them."""

    seq_id: str
    name: str  # of the prompt's folder
    block_ids: list[int]
    first_block: int  # of the prompt: those before it are not moved
    num_tokens: int  # of the prompt


@dataclass
class ExampleConnectorMetadata(KVConnectorMetadata):
    """Transfers that begin with a plan."""

    loads: list[PromptTransfer] = field(default_factory=list)
    saves: list[PromptTransfer] = field(default_factory=list)


class ExampleConnector(KVConnectorBase):
    """Sends and fetches the prompts of requests whose ``kv_transfer_params`` ask for it.

    ``do_remote_decode`` asks to send a prompt: another engine goes on. The answer's params are what
    that engine must be given: ``do_remote_prefill``, and the prompt's name.
    """

    def __init__(self, config: Any, role: KVConnectorRole, rank: int = 0):
        super().__init__(config, role, rank)
        transfer = config.kv_transfer_config
        settings = _read_settings(transfer.kv_connector_extra_config)
        self.folder = Path(settings["shared_storage_path"])
        self.block_size = config.cache_config.block_size
        self.sends = transfer.is_kv_producer
        self.fetches = transfer.is_kv_consumer
        self._files: LayerFiles | None = None
        if role is KVConnectorRole.SCHEDULER:
            check_folder(self.folder)
            self._form = cache_form(config)
            self._metadata = ExampleConnectorMetadata()
            return
        from minivllm.kv_transfer.layer_files import LayerFiles

        self._files = LayerFiles(
            self.folder,
            rank=rank,
            load_timeout=settings["load_timeout"],
            keep_for=settings["keep_for"],
        )

    # -- the scheduler's side ----------------------------------------------------------------------

    def check_request(self, request: Request) -> None:
        """Raise ``ValueError`` if a request asks for K and V that are not to be had here."""
        params = request.kv_transfer_params
        if params is None:
            return
        prefill = params.get("do_remote_prefill")
        decode = params.get("do_remote_decode")
        for name, value in (("do_remote_prefill", prefill), ("do_remote_decode", decode)):
            ok = value is None or isinstance(value, bool)
            check(ok, f"kv_transfer_params[{name!r}]", value, "true or false")
        if prefill and decode:
            raise ValueError(
                "kv_transfer_params asks for do_remote_prefill and do_remote_decode; one engine "
                "does one of them."
            )
        if decode and not self.sends:
            raise ValueError(
                "kv_transfer_params asks for do_remote_decode, but this engine's kv_role is "
                f"{self.config.kv_transfer_config.kv_role!r}: it sends nothing."
            )
        if prefill:
            self._check_prefill(request, params)

    def _check_prefill(self, request: Request, params: Mapping[str, Any]) -> None:
        if not self.fetches:
            raise ValueError(
                "kv_transfer_params asks for do_remote_prefill, but this engine's kv_role is "
                f"{self.config.kv_transfer_config.kv_role!r}: it fetches nothing."
            )
        given = params.get("remote_name")
        ok = isinstance(given, str) and given
        allowed = "the name that the other engine's answer has"
        check(bool(ok), "kv_transfer_params['remote_name']", given, allowed)
        name = prompt_name(request, self.block_size, self._form)
        if given != name:
            raise ValueError(
                f"kv_transfer_params['remote_name'] is {given[:70]!r}, but this prompt is {name!r} "
                "here: the other engine has another prompt, adapter, model, dtype, kv_cache_dtype, "
                "block_size or tensor_parallel_size."
            )
        if not (self.folder / name).is_dir():
            raise ValueError(
                f"kv_transfer_params['remote_name'] is {name!r}, but its files are gone from "
                f"shared_storage_path, or were never there."
            )

    def get_num_new_matched_tokens(
        self, seq: Sequence, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """All of a prompt that is not cached here, once; after a preemption it is computed."""
        params = seq.request.kv_transfer_params or {}
        if not params.get("do_remote_prefill") or seq.request.num_preemptions:
            return 0, False
        return seq.num_prompt_tokens - num_computed_tokens, True

    def update_state_after_alloc(
        self, seq: Sequence, block_ids: list[int], num_external_tokens: int
    ) -> None:
        """Let the workers fetch a prompt."""
        num_local = seq.num_prompt_tokens - num_external_tokens
        transfer = PromptTransfer(
            seq.seq_id,
            prompt_name(seq.request, self.block_size, self._form),
            block_ids,
            first_block=num_local // self.block_size,
            num_tokens=seq.num_prompt_tokens,
        )
        self._metadata.loads.append(transfer)

    def build_connector_meta(self, scheduler_output: Any) -> ExampleConnectorMetadata:
        """Return the transfers that have been asked for since the last plan."""
        metadata = self._metadata
        self._metadata = ExampleConnectorMetadata()
        return metadata

    def request_finished(
        self, seq: Sequence, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Keep the blocks of a prompt that is to be sent, if its answer ended by its length."""
        params = seq.request.kv_transfer_params or {}
        by_length = seq.status == RequestStatus.FINISHED_LENGTH_CAPPED
        if not (params.get("do_remote_decode") and by_length and seq.index == 0):
            return False, None
        name = prompt_name(seq.request, self.block_size, self._form)
        try:
            (self.folder / name).mkdir(exist_ok=True)  # a promise
        except OSError:
            return False, None  # the folder has vanished: who goes on computes it
        count = cdiv(seq.num_prompt_tokens, self.block_size)
        self._metadata.saves.append(
            PromptTransfer(
                seq.seq_id,
                name,
                block_ids[:count],
                first_block=0,
                num_tokens=seq.num_prompt_tokens,
            )
        )
        return True, {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.config.kv_transfer_config.engine_id,
            "remote_request_id": seq.request.request_id,
            "remote_name": name,
        }

    # -- the worker's side -------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: Mapping[str, Mapping[str, Any]]) -> None:
        """Hear of the tensors of each layer."""
        assert self._files is not None, "this is a worker's side"
        self._files.layers = kv_caches

    def start_load_kv(self, metadata: KVConnectorMetadata) -> None:
        """Start to read the prompts that the plan asks for, beside the steps."""
        assert self._files is not None
        assert isinstance(metadata, ExampleConnectorMetadata)
        for transfer in metadata.loads:
            self._files.load(transfer)
        for transfer in metadata.saves:
            self._files.save(transfer)

    def get_finished(self, finished_req_ids: Iterable[str]) -> KVConnectorOutput:
        """Put what has been read into its blocks. Returns the transfers that have ended."""
        assert self._files is not None, "this is a worker's side"
        return self._files.take_ended()

    def forget_all(self) -> None:
        """Drop transfers that workers have not heard of, or what they have read and not put into
        blocks; what is being written goes on.
        """
        if self._files is not None:
            self._files.forget_loads()
            return
        for transfer in self._metadata.saves:
            with suppress(OSError):  # another engine may have kept the same promise
                (self.folder / transfer.name).rmdir()
        self._metadata = ExampleConnectorMetadata()

    def shutdown(self) -> None:
        """End the threads that read and write."""
        if self._files is not None:
            self._files.shutdown()


def _read_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    for name in given:
        where = f"kv_connector_extra_config[{name!r}]"
        check(name in _SETTINGS, where, given[name], f"one of {sorted(_SETTINGS)}")
    settings = {**_SETTINGS, **given}
    path = settings["shared_storage_path"]
    ok = isinstance(path, (str, os.PathLike)) and str(path) != "" and "\0" not in str(path)
    check(ok, "kv_connector_extra_config['shared_storage_path']", path, "a folder")
    for name in ("load_timeout", "keep_for"):
        ok = is_number(settings[name]) and settings[name] > 0
        where = f"kv_connector_extra_config[{name!r}]"
        check(ok, where, settings[name], "a number of seconds above 0")
    return settings


def check_folder(folder: Path) -> None:
    """Make a folder if it is not there. Raises ``ValueError`` unless it can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        raise ValueError(
            f"kv_connector_extra_config['shared_storage_path'] is {str(folder)!r}, which cannot be "
            f"written ({error.strerror}); give a folder that can."
        ) from error
