"""A JupyterLab of its own, with no user's settings."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOMES = ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR",
         "JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR")  # fmt: skip


@contextmanager
def serving_lab(folder: Path, homes: Path) -> Iterator[str]:
    """Address of its files, such as "http://127.0.0.1:40000/lab/tree/".

    Args:
        folder: that it shows.
        homes: where it keeps settings, each kind in a folder of its own.
    """
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}",
         "--ServerApp.port_retries=0", "--IdentityProvider.token=", f"--notebook-dir={folder}",
         "--LabApp.extension_manager=readonly"],
        env={**os.environ, **{name: str(homes / name.lower()) for name in HOMES}},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(f"http://127.0.0.1:{port}/api", server)
        yield f"http://127.0.0.1:{port}/lab/tree/"
    finally:
        server.terminate()
        server.wait(30)


def wait_for(address: str, server: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            assert server.poll() is None, "JupyterLab did not start"
            assert time.monotonic() < deadline, "JupyterLab did not answer"
            time.sleep(0.5)
