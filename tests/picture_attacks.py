"""Attacks on a server that reads pictures: what a request names, and how it is refused."""

import base64
import http.server
import os
import struct
import threading
import zlib
from contextlib import contextmanager
from pathlib import Path

from picture_chats import data_uri, encoded, picture

from minivllm.multimodal import download

PUBLIC = "93.184.216.34"  # an address of the test's own network: see ``network``
NAMES = {
    "pictures.example": [PUBLIC],
    "loopback.example": ["127.0.0.1"],
    "loopback6.example": ["::1"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "metadata.example": ["169.254.169.254"],
    "private.example": ["10.0.0.1"],
    "shared.example": ["100.64.0.1"],
    "both.example": [PUBLIC, "192.168.0.1"],
    "nat64.example": ["64:ff9b::7f00:1"],
    "tunnel.example": ["2002:7f00:1::1"],
    "nothing.example": ["0.0.0.0"],
    "unique.example": ["fd00::1"],
    "multicast.example": ["224.0.0.1"],
}
# All these are allowed by name; the last ones are addresses that look like names.
DOMAINS = [*NAMES, "rebinding.example", "localhost", "127.0.0.1", "2130706433", "0177.0.0.1",
           "0x7f.1"]  # fmt: skip


class Handler(http.server.BaseHTTPRequestHandler):
    """A host of pictures, some of which are none."""

    seen: list[str] = []  # noqa: RUF012

    def do_GET(self):
        self.seen.append(self.path)
        if self.path.startswith("/to?"):
            self.send_response(302)
            self.send_header("Location", self.path[4:])
            self.end_headers()
        elif self.path == "/wrong":
            self.send_response(302)
            self.send_header("Location", "http://[bad")
            self.end_headers()
        elif self.path == "/missing":
            self.send_error(404)
        elif self.path == "/announced":
            self.send_response(200)
            self.send_header("Content-Length", str(300 * 2**20))
            self.end_headers()
        elif self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            try:
                for _ in range(300):
                    self.wfile.write(bytes(2**20))
            except OSError:
                pass
        elif self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            try:
                while not STOP.wait(0.02):
                    self.wfile.write(b"x")
            except OSError:
                pass
        else:
            data = encoded(picture(int(self.headers.get("Content-Length", 0))))
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, *args):
        """Say nothing."""


class Server(http.server.ThreadingHTTPServer):
    """A server that says nothing of clients who hang up."""

    def handle_error(self, request, client_address):
        """Say nothing."""


STOP = threading.Event()


@contextmanager
def host(tls=None):
    """A host of pictures on this machine; gives its port. ``tls`` is a context for https."""
    STOP.clear()
    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        STOP.set()
        server.shutdown()
        server.server_close()


def network(port, connected=None):
    """A network in which one public address is the host on this machine.

    Args:
        port: of the host.
        connected: a list of the addresses that were connected to.
    """
    asked = []

    def resolve(name, to_port):
        asked.append(name)
        if name == "rebinding.example":  # harmless when it is looked at, then not
            return [PUBLIC] if asked.count(name) == 1 else ["127.0.0.1"]
        return NAMES[name] if name in NAMES else download.resolve(name, to_port)

    def connect(address, to_port, seconds):
        if connected is not None:
            connected.append(address)
        assert address == PUBLIC, f"a connection to {address}"
        return download.connect("127.0.0.1", port, seconds)

    return download.Network(resolve, connect)


def png(width, height):
    """A PNG that says to be so large, and is not."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body + chunk(b"IEND", b"")


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n"


def folder(directory: Path) -> Path:
    """A folder of allowed pictures, and things around it that are not. Returns the folder."""
    allowed = directory / "allowed"
    allowed.mkdir()
    (allowed / "cat.png").write_bytes(encoded(picture(5)))
    (directory / "secret.png").write_bytes(encoded(picture(6)))
    (directory / "allowed-not").mkdir()
    (directory / "allowed-not" / "secret.png").write_bytes(encoded(picture(6)))
    (allowed / "link.png").symlink_to(directory / "secret.png")
    (allowed / "up").symlink_to(directory)
    (allowed / "circle").symlink_to("circle")
    (allowed / "text.png").write_text("root:x:0:0:root:/root:/bin/bash\n")
    os.mkfifo(allowed / "pipe.png")
    with (allowed / "large.png").open("wb") as file:
        file.truncate(300 * 2**20)
    return allowed


def attacks(allowed: Path) -> dict[str, tuple[str, int]]:
    """By name a URL, and the status that refuses it."""
    good = base64.b64encode(encoded(picture())).decode()
    pictures = "http://pictures.example"
    files = {
        "parent": f"file://{allowed}/../secret.png",
        "parent in per cent": f"file://{allowed}/%2e%2e/secret.png",
        "link to a file": f"file://{allowed}/link.png",
        "link to a folder": f"file://{allowed}/up/secret.png",
        "sibling": f"file://{allowed}-not/secret.png",
        "circle": f"file://{allowed}/circle",
        "not there": f"file://{allowed}/nothing.png",
        "passwords": "file:///etc/passwd",
        "passwords by path": "/etc/passwd",
        "passwords by relative path": "../../../../../../../../../../etc/passwd",
        "device": "file:///dev/zero",
        "pipe": f"file://{allowed}/pipe.png",
        "folder": f"file://{allowed}",
        "zero byte": f"file://{allowed}/cat.png%00.txt",
        "text": f"file://{allowed}/text.png",
        "other machine": f"file://evil.example{allowed}/cat.png",
        "long name": f"file://{allowed}/" + "a" * 5000,
    }
    hosts = {
        "not allowed": "http://other.example/a.png",
        "allowed name as user": "http://pictures.example@other.example/a.png",
        "user of an allowed host": "http://root@pictures.example/a.png",
        "allowed name as a beginning": "http://pictures.example.other.example/a.png",
        "backslash": "http://pictures.example\\@other.example/a.png",
        "line": "http://pictures.example/a\r\nHost:%20other.example",
        "bad port": "http://pictures.example:port/a.png",
        "bad bracket": "http://[::1/a.png",
        "no host": "http:///a.png",
        "loopback": "http://127.0.0.1:1/a.png",
        "loopback by name": "http://localhost/a.png",
        "loopback, resolved": "http://loopback.example/a.png",
        "loopback of IPv6": "http://[::1]/a.png",
        "loopback of IPv6, resolved": "http://loopback6.example/a.png",
        "mapped": "http://[::ffff:127.0.0.1]/a.png",
        "mapped, resolved": "http://mapped.example/a.png",
        "metadata": "http://169.254.169.254/latest/meta-data/",
        "metadata, resolved": "http://metadata.example/latest/meta-data/",
        "decimal": "http://2130706433/a.png",
        "octal": "http://0177.0.0.1/a.png",
        "hexadecimal": "http://0x7f.1/a.png",
        "private": "http://private.example/a.png",
        "shared": "http://shared.example/a.png",
        "one of two": "http://both.example/a.png",
        "NAT64": "http://nat64.example/a.png",
        "tunnel": "http://tunnel.example/a.png",
        "nothing": "http://nothing.example/a.png",
        "unique local": "http://unique.example/a.png",
        "multicast": "http://multicast.example/a.png",
        "redirect inside": f"{pictures}/to?http://127.0.0.1/a.png",
        "redirect to a name inside": f"{pictures}/to?http://loopback.example/a.png",
        "redirect elsewhere": f"{pictures}/to?//other.example/a.png",
        "redirect to a file": f"{pictures}/to?file:///etc/passwd",
        "redirect to data": f"{pictures}/to?data:image/png;base64,{good}",
        "rebinding": "http://rebinding.example/to?http://rebinding.example/a.png",
        "scheme": "ftp://pictures.example/a.png",
        "another scheme": "gopher://127.0.0.1:25/",
    }
    unprocessable = {
        "missing": f"{pictures}/missing",
        "no TLS": "https://pictures.example/a.png",
        "redirects without end": f"{pictures}/to?" + "/to?" * 10 + "/a.png",
        "redirect to no URL": f"{pictures}/wrong",
    }
    data = {
        "wrong base64": "data:image/png;base64,*" + good,
        "base64 cut": "data:image/png;base64," + good[:-3],
        "no base64": "data:image/svg+xml,<svg/>",
        "empty": "data:image/png;base64,",
        "no data": "data:",
        "empty URL": "",
        "picture of SVG": data_uri(SVG, "image/svg+xml"),
        "SVG as PNG": data_uri(SVG),
        "PostScript": data_uri(EPS),
        "10 to the 9th pixels": data_uri(png(40_000, 25_000)),
        "200 million pixels": data_uri(png(20_000, 10_000)),
        "no pixel": data_uri(png(0, 0)),
        "a line": data_uri(png(1, 100_000)),
        "truncated": data_uri(encoded(picture())[:-100]),
        "head alone": data_uri(encoded(picture())[:40]),
    }
    large = {
        "300 MB announced": f"{pictures}/announced",
        "300 MB sent": f"{pictures}/endless",
        "300 MB in a file": f"file://{allowed}/large.png",
    }
    groups = ((files, 400), (hosts, 400), (data, 400), (large, 413), (unprocessable, 422))
    return {name: (url, status) for group, status in groups for name, url in group.items()}
