"""A playground that is served from here, in the languages that there are."""

import threading
from contextlib import contextmanager

from minivllm.course.playground.server import PlaygroundServer


@contextmanager
def serving_playground():
    """The server, on a port that is free, in a thread."""
    server = PlaygroundServer(0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
