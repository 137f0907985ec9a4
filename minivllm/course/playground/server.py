"""PlaygroundServer: the page on this machine; a Python process of its own takes the worker's place.

A request runs code. So the server listens on 127.0.0.1 alone, and takes requests of its own page
alone: browsers say in Origin where a request comes from, and Host must be this server's own name
(any other one is a foreign domain that resolves to this machine: DNS rebinding).
"""

from __future__ import annotations

import json
import mimetypes
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath

from minivllm.course.playground.build import page_files
from minivllm.course.playground.process import PythonProcess
from minivllm.course.playground.texts import files_with_texts, language_of, page_of
from minivllm.lab.translation.importing import current_language
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
        self.files = page_files()
        self._pythons: dict[str, PythonProcess] = {}  # by language
        self._lock = threading.Lock()  # one language is made at a time
        self.python(current_language())
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise ValueError(f"port {port} cannot be used: {error.strerror}.") from error

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def python(self, language: str) -> PythonProcess:
        """The Python that speaks a language; with the first call its files of the page are made.

        Raises:
            ValueError: for a language that there is not, or whose catalogue is broken.
        """
        if language not in self._pythons:
            with self._lock:
                texts = files_with_texts("local", language)
                self.files |= {name: text.encode() for name, text in texts.items()}
                self._pythons.setdefault(language, PythonProcess(language))
        return self._pythons[language]

    def address(self, language: str) -> str:
        """The address of the page in a language. Raises as ``python``."""
        self.python(language)
        return self.url if language == "en" else self.url + page_of(language)

    def server_close(self) -> None:
        """Close the socket and end the children."""
        super().server_close()
        for python in self._pythons.values():
            python.stop()


class _Handler(BaseHTTPRequestHandler):
    server: PlaygroundServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].lstrip("/") or page_of("en")
        if not self._is_ours():
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"this page is for this machine alone")
            return
        try:
            self.server.python(language_of(name))
        except ValueError as error:
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", str(error).encode())
            return
        if name not in self.server.files:
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
        python = self.server.python(language_of(self.path.lstrip("/")))
        if self.path.endswith("/stop"):
            python.stop()
            return "{}"
        body = json.loads(text)
        ok = isinstance(body, dict) and {"request", "seconds"} <= body.keys()
        check(ok, "the request", body, 'an object with "request" and "seconds"')
        seconds = body["seconds"]
        ok = is_number(seconds) and 0 < seconds <= MAX_SECONDS
        check(ok, "seconds", seconds, f"above 0 and at most {MAX_SECONDS}")
        return python.ask(json.dumps(body["request"]), seconds)

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
