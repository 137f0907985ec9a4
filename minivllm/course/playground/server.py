"""PlaygroundServer: the page on this machine; a Python process of its own takes the worker's place.

A request runs code. So the server listens on 127.0.0.1 alone, and takes requests of its own page
alone: browsers say in Origin where a request comes from, and Host must be this server's own name
(any other one is a foreign domain that resolves to this machine: DNS rebinding).
"""

from __future__ import annotations

import json
import mimetypes
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath

from minivllm.course.playground.build import page_files
from minivllm.course.playground.process import PythonProcess
from minivllm.utils.validation import check, is_int, is_number

MAX_SECONDS = 60  # that a request may ask for
MAX_BYTES = 2_000_000  # of a request


class PlaygroundServer(ThreadingHTTPServer):
    """A server on 127.0.0.1; port 0 takes a free one.

    Raises:
        ValueError: for a port that there is not, or that is in use.
    """

    daemon_threads = True

    def __init__(self, port: int):
        check(is_int(port, 0) and port < 2**16, "port", port, "from 0 to 65535")
        self.files = page_files(engine="local")
        self.python = PythonProcess()
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise ValueError(f"port {port} cannot be used: {error.strerror}.") from error

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def server_close(self) -> None:
        """Close the socket and end the child."""
        super().server_close()
        self.python.stop()


class _Handler(BaseHTTPRequestHandler):
    server: PlaygroundServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].lstrip("/") or "index.html"
        if not self._is_ours():
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"this page is for this machine alone")
        elif name not in self.server.files:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such page")
        else:
            kind = mimetypes.guess_type(str(PurePosixPath(name)))[0] or "text/plain"
            self._send(HTTPStatus.OK, f"{kind}; charset=utf-8", self.server.files[name])

    def do_POST(self) -> None:
        if not self._is_ours() or self.headers.get_content_type() != "application/json":
            self.close_connection = True
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"only this server's own page may ask")
            return
        try:
            size = int(self.headers.get("Content-Length", 0))
            check(0 <= size <= MAX_BYTES, "Content-Length", size, f"at most {MAX_BYTES:,}")
            reply = self._reply(self.rfile.read(size))
        except (ValueError, RecursionError) as error:
            self.close_connection = True
            too_deep = isinstance(error, RecursionError)
            why = "it is nested too deep." if too_deep else str(error)
            reply = json.dumps({"error": f"the request cannot be read: {why}"})
        self._send(HTTPStatus.OK, "application/json", reply.encode())

    def _reply(self, text: bytes) -> str:
        if self.path == "/stop":
            self.server.python.stop()
            return "{}"
        body = json.loads(text)
        ok = isinstance(body, dict) and {"request", "seconds"} <= body.keys()
        check(ok, "the request", body, 'an object with "request" and "seconds"')
        seconds = body["seconds"]
        ok = is_number(seconds) and 0 < seconds <= MAX_SECONDS
        check(ok, "seconds", seconds, f"above 0 and at most {MAX_SECONDS}")
        return self.server.python.ask(json.dumps(body["request"]), seconds)

    def _is_ours(self) -> bool:
        host = self.headers.get("Host")
        origin = self.headers.get("Origin")
        port = self.server.server_port
        ours = host in (f"127.0.0.1:{port}", f"localhost:{port}")
        return ours and origin in (None, f"http://{host}")

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args) -> None:
        """Nothing: the terminal is for people."""
