"""Record a vLLM server under 64 streams, of which some hang up: a part of ``record_runs``."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from record_runs import CHAT, COMMON, RULES, SETTINGS, TOPICS

from minivllm.embedded import embedded_model_path


def record() -> None:
    """Start a server, send all streams, and end it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings: dict[str, Any] = COMMON | SETTINGS["server"]
    options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    options[options.index("--enforce-eager=True")] = "--enforce-eager"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", f"--port={port}"]
    command += [f"--model={embedded_model_path()}", "--served-model-name=embedded", *options]
    command += ["--scheduler-cls=minivllm.xray.TracingScheduler"]
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    server = subprocess.Popen(command, env=environment)
    try:
        asyncio.run(_send_all(f"http://127.0.0.1:{port}"))
        time.sleep(1)  # vLLM kills its engine's process, and the last steps must be in the file
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)


async def _send_all(url: str) -> None:
    import httpx

    rng = random.Random("server")
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        deadline = time.monotonic() + 120
        while not await _is_up(client):
            assert time.monotonic() < deadline, "the server does not answer"
            await asyncio.sleep(0.5)
        streams = []
        for i in range(64):
            prompt = RULES * (i % 3 == 0) + CHAT.format(rng.choice(TOPICS))
            streams.append(_stream(client, prompt, rng.randint(8, 60), hangs_up=i % 5 == 4))
        await asyncio.gather(*streams)


async def _is_up(client) -> bool:
    import httpx

    try:
        return (await client.get("/health")).status_code == 200
    except httpx.TransportError:
        return False


async def _stream(client, prompt: str, max_tokens: int, hangs_up: bool) -> None:
    body = {
        "model": "embedded", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
        "stream": True, "ignore_eos": True,
    }  # fmt: skip
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        num_lines = 0
        async for _ in answer.aiter_lines():
            num_lines += 1
            if hangs_up and num_lines > 6:
                return


if __name__ == "__main__":
    record()
