"""Download of an item from a host that is allowed, and never from an address of this network.

A name is resolved once. Its addresses are checked, and the connection goes to a checked address, so
that a second answer of the name server changes nothing. A redirect is checked like the first URL.
(vLLM: vllm/connections.py, which trusts every address.)
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from minivllm.multimodal.errors import MediaError

MOST_BYTES = 32 * 2**20  # of an item, as of a request's body
MOST_SECONDS = 5.0  # for a download with all its redirects: vLLM's for a picture
_MOST_REDIRECTS = 5
_PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)
_IN_PATHS = "/%:@!$&'()*+,;=~"
_HEADERS = {"User-Agent": "minivllm", "Accept": "*/*", "Accept-Encoding": "identity"}


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a name, as this machine's resolver has them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def connect(address: str, port: int, seconds: float) -> socket.socket:
    """Open a connection to an address, which is no name: nothing is resolved."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.settimeout(seconds)
        opened.connect((address, port))
    except BaseException:
        opened.close()
        raise
    return opened


@dataclass(frozen=True)
class Network:
    """The two doors to the network; a test gives its own."""

    resolve: Callable[[str, int], list[str]] = resolve
    connect: Callable[[str, int, float], socket.socket] = connect


def download(url: str, domains: tuple[str, ...], network: Network) -> bytes:
    """The bytes behind an http or https URL.

    Args:
        url: of a host in ``domains``, with its redirects.
        domains: names of hosts in lower case.
        network: resolves names and connects.

    Raises:
        MediaError: if a URL or its address is not allowed, the host does not answer with the item
            in time, or it is too large.
    """
    until = time.monotonic() + MOST_SECONDS
    for _ in range(_MOST_REDIRECTS + 1):
        parts, host, port = _checked(url, domains)
        address = _public_address(host, port, network)
        try:
            answer = _get(parts, host, port, address, until=until, network=network)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, MediaError):
                raise
            is_late = isinstance(error, TimeoutError) or time.monotonic() >= until
            reason = "in time" if is_late else "properly"
            raise _failed(f"its host does not answer {reason}") from error
        if isinstance(answer, bytes):
            return answer
        try:
            url = urljoin(url, answer)
        except ValueError as error:
            raise _failed("its host redirects to what is no URL") from error
    raise _failed(f"it is redirected more than {_MOST_REDIRECTS} times")


def is_public(address: str) -> bool:
    """True for an address of the public Internet: not of this machine or network, nor a mapped one.

    Of IPv6 only global unicast is, and no tunnel (6to4, Teredo) that has an IPv4 address inside.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return ip.is_global and not ip.is_multicast
    unicast = ip in ipaddress.IPv6Network("2000::/3")
    return unicast and ip.is_global and ip.sixtofour is None and ip.teredo is None


def _checked(url: str, domains: tuple[str, ...]) -> tuple[SplitResult, str, int]:
    """A URL in parts, its host and port. Raises ``MediaError`` unless its host is allowed."""
    if any(ord(character) <= 32 or character in "\\\x7f" for character in url):
        raise MediaError("its URL has a space, a backslash or a control character")
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".").encode("idna").decode()
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise MediaError("its URL cannot be read") from error
    if parts.scheme not in _PORTS:
        raise MediaError("its URL leads to another scheme than http and https")
    if parts.username is not None or parts.password is not None:
        raise MediaError("its URL has a user's name, which is not taken")
    if host not in domains:
        raise MediaError(
            f"its host, {host[:100]!r}, is not one of those that --allowed-media-domains names"
        )
    return parts, host, port


def _public_address(host: str, port: int, network: Network) -> str:
    """An address of a host. Raises ``MediaError`` if any of its addresses is not public."""
    try:
        addresses = network.resolve(host, port)
    except (OSError, UnicodeError) as error:
        raise _failed("the name of its host cannot be resolved") from error
    if not addresses or not all(map(is_public, addresses)):
        raise MediaError("the name of its host stands for an address that is not public")
    return addresses[0]


def _get(
    parts: SplitResult, host: str, port: int, address: str, *, until: float, network: Network
) -> bytes | str:
    """Ask for a URL at an address. Returns the body, or where a redirect leads."""
    opened = network.connect(address, port, _left(until))
    if parts.scheme == "https":
        context = ssl.create_default_context()
        opened = context.wrap_socket(opened, server_hostname=host, do_handshake_on_connect=False)
    # It cuts the connection when the time is over, however slowly the other end sends.
    timer = threading.Timer(_left(until), _cut, (opened,))
    timer.daemon = True
    timer.start()
    with closing(opened):
        try:
            if isinstance(opened, ssl.SSLSocket):
                opened.do_handshake()
            return _read(opened, parts, host, port, until)
        finally:
            timer.cancel()


def _read(
    opened: socket.socket, parts: SplitResult, host: str, port: int, until: float
) -> bytes | str:
    """Send a request, and read the answer: the body, or where a redirect leads."""
    connection = http.client.HTTPConnection(host, port)
    connection.auto_open = 0  # it would resolve the name again
    connection.sock = opened
    target = quote(parts.path or "/", safe=_IN_PATHS)
    if parts.query:
        target += "?" + quote(parts.query, safe=_IN_PATHS + "?")
    name = host if port == _PORTS[parts.scheme] else f"{host}:{port}"
    connection.request("GET", target, headers=_HEADERS | {"Host": name})
    response = connection.getresponse()
    location = response.getheader("Location")
    if response.status in _REDIRECTS and location:
        return location
    if response.status != HTTPStatus.OK:
        raise _failed(f"its host answers with status {response.status}")
    if int(response.getheader("Content-Length") or 0) > MOST_BYTES:
        raise too_large()
    body = response.read(MOST_BYTES + 1)
    if len(body) > MOST_BYTES:
        raise too_large()
    if time.monotonic() >= until:  # the body ends where the connection was cut
        raise TimeoutError
    return body


def _cut(opened: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(opened, socket.SHUT_RDWR)  # TLS, too, has no last word


def _left(until: float) -> float:
    return max(0.001, until - time.monotonic())


def too_large() -> MediaError:
    """The error of an item with too many bytes."""
    return MediaError(f"it may have {MOST_BYTES:,} bytes", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def _failed(message: str) -> MediaError:
    return MediaError(message, HTTPStatus.UNPROCESSABLE_ENTITY)
