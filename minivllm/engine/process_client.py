"""ProcessClient: connects ``AsyncLLM`` to an engine core in a process of its own.

(vLLM: vllm/v1/engine/core_client.py)
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import threading
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize

import torch

from minivllm import envs
from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.core_client import CoreClient, Inbox, OnError, OnOutputs, make_core
from minivllm.engine.core_loop import STOP, EngineCoreLoop
from minivllm.engine.core_outputs import EngineCoreOutputs
from minivllm.engine.input_processor import InputProcessor
from minivllm.engine.serial_utils import decode, encode
from minivllm.executor.exceptions import EngineDeadError
from minivllm.utils.gc_utils import freeze_gc_heap
from minivllm.utils.validation import check


class ProcessClient(CoreClient):
    """An engine core in a process of its own, behind a pipe.

    A thread here reads its outputs. Another one sends: a process that does not read, since it is
    stopped or has much to do, holds up this thread alone. What waits is sent in order later.

    Args:
        args, on_outputs, on_error: as for every client; all of ``args`` must be picklable.
        data_parallel_rank: its number among replicas.
    """

    def __init__(
        self,
        args: EngineArgs,
        on_outputs: OnOutputs,
        on_error: OnError,
        data_parallel_rank: int = 0,
    ):
        self._on_outputs = on_outputs
        self._on_error = on_error
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_run_process, args=(other, args, data_parallel_rank))
        try:
            self._process.start()  # not a daemon: its ranks may be processes of its own
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise ValueError(
                f"the engine's arguments cannot be sent to its process: {error}"
            ) from error
        # Python waits for its processes before it finalizes objects, and this one waits for STOP
        Finalize(self, _close, (self._pipe,), exitpriority=1)
        other.close()
        self._stopping = False
        self._outbox = queue.SimpleQueue[tuple | None]()  # None: nothing more is sent
        self._threads = [
            threading.Thread(target=self._send, name="minivllm-engine-sender", daemon=True),
            threading.Thread(target=self._listen, name="minivllm-engine", daemon=True),
        ]

    def wait_until_ready(self) -> None:
        try:
            ready = self._pipe.recv()
        except EOFError as error:
            raise EngineDeadError(
                "its process has ended before it began; a script that starts one must do so below "
                "if __name__ == '__main__':, since the process imports the script again"
            ) from error
        if isinstance(ready, BaseException):
            raise ready
        self.vllm_config, self.kv_cache_config = ready
        for thread in self._threads:
            thread.start()

    def get_input_processor(self) -> InputProcessor:
        return InputProcessor.from_config(self.vllm_config)

    def submit(self, message: tuple) -> None:
        try:
            data = pickle.dumps(message)
        except Exception as error:
            raise ValueError(f"this cannot be sent to the engine's process: {error}") from error
        kind, *values = message
        key = values[0].request_id if kind == "add" else values[0] if values else None
        self._outbox.put((kind, key, data))

    def stop(self) -> None:
        """Let the process end after its current step, without waiting for it."""
        self._stopping = True
        self.submit(STOP)

    def shutdown(self, timeout: float = 10.0) -> None:
        """End the process after its current step; by force, if that takes too long."""
        self.stop()
        self._process.join(timeout)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._outbox.put(None)

    def _send(self) -> None:
        """Thread main: send what is in the outbox."""
        with suppress(OSError):  # the process has ended, as the listener has noticed, too
            while (message := self._outbox.get()) is not None:
                self._pipe.send(message)

    def _listen(self) -> None:
        """Thread main: read outputs until the process ends."""
        try:
            while not isinstance(message := self._pipe.recv(), BaseException):
                self._on_outputs(decode(message))
        except (EOFError, OSError):
            self._process.join(1)
            message = EngineDeadError(f"its process has ended: {self._process.exitcode}")
        except Exception as error:  # else requests would wait for a thread that has ended
            message = error
        if not self._stopping:
            self._on_error(message)


def _close(pipe: Connection) -> None:
    """Close a pipe, which ends the process at its other end."""
    pipe.close()


def _read(pipe: Connection, inbox: Inbox) -> None:
    """Empty the pipe also while a step is computed: a full one would hold up its writer."""
    while True:
        try:
            kind, key, data = pipe.recv()
        except (EOFError, OSError):  # the parent is gone
            return inbox.put(STOP)
        try:
            inbox.put(pickle.loads(data))
        except Exception as error:  # this process does not know a class or function in it
            refused = ValueError(f"the engine's process cannot read this: {error}")
            inbox.put(("refuse", kind, key, refused))


def _send(pipe: Connection, outputs: EngineCoreOutputs) -> None:
    """Send outputs. A call's result that cannot be pickled becomes an error of its caller."""
    for place, (number, value) in enumerate(outputs.utility_outputs):
        try:
            pickle.dumps(value)
        except Exception as error:
            refused = ValueError(f"this result cannot be sent to another process: {error}")
            outputs.utility_outputs[place] = (number, refused)
    pipe.send(encode(outputs))


def _take_share(args: EngineArgs, data_parallel_rank: int) -> None:
    """Keep to a replica's share of this machine's cores and GPUs.

    Raises:
        ValueError: if there are not enough GPUs for all replicas.
    """
    replicas = args.data_parallel_size
    num_gpus = torch.cuda.device_count()
    size = args.tensor_parallel_size * args.pipeline_parallel_size
    torch.set_num_threads(max(1, torch.get_num_threads() // replicas))
    device = envs.device() if args.device == "auto" else args.device
    is_elsewhere = device == "cpu" or args.distributed_executor_backend == "ray"
    if num_gpus >= size and not is_elsewhere:  # with fewer, an engine says so itself
        allowed = f"at most {num_gpus // size} with {num_gpus} GPUs and {size} for each engine"
        check(replicas * size <= num_gpus, "data_parallel_size", replicas, allowed)
        name = "CUDA_VISIBLE_DEVICES"
        ids = os.environ.get(name, ",".join(map(str, range(num_gpus)))).split(",")
        os.environ[name] = ",".join(ids[data_parallel_rank * size :][:size])


def _run_process(pipe: Connection, args: EngineArgs, data_parallel_rank: int) -> None:
    """Process main: make the core, then run its loop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent decides when it ends
    inbox = Inbox()
    try:
        if args.data_parallel_size > 1:
            _take_share(args, data_parallel_rank)
        core, _ = make_core(args)
        core.executor.register_failure_callback(inbox.put)
        freeze_gc_heap()
        threading.Thread(target=_read, args=(pipe, inbox), daemon=True).start()
        pipe.send((core.config, core.kv_cache_config))
        try:
            EngineCoreLoop(core, inbox.receive, partial(_send, pipe)).run()
        finally:
            core.shutdown()
    except (ValueError, OSError, EngineDeadError) as error:
        pipe.send(error)
    except BaseException as error:
        pipe.send(RuntimeError(repr(error)))
        raise
