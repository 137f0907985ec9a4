"""The door for pictures: data, files and hosts; what is closed stays closed."""

import shutil
import ssl
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from picture_attacks import DOMAINS, PUBLIC, Handler, attacks, folder, host, network
from picture_chats import data_uri, encoded, picture
from PIL import Image

from minivllm.config.multimodal import MultiModalConfig
from minivllm.multimodal import download, image
from minivllm.multimodal.errors import MediaError
from minivllm.multimodal.media import MediaConnector, MediaUrl


def connector(allowed="", domains=(), on=None, **options):
    config = MultiModalConfig(
        allowed_local_media_path=str(allowed), allowed_media_domains=tuple(domains), **options
    )
    return MediaConnector(config, on)


def fetch(of, url, **options):
    return of.fetch("image", MediaUrl(url), options)


@pytest.fixture(scope="module")
def allowed(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("media").resolve())


@pytest.fixture(scope="module")
def port():
    with host() as number:
        yield number


@pytest.mark.parametrize("name", attacks(Path("/")))
def test_an_attack_is_refused_in_a_sentence(name, allowed, port):
    url, status = attacks(allowed)[name]
    connected = []
    door = connector(allowed, DOMAINS, network(port, connected))
    with pytest.raises(MediaError) as refused:
        fetch(door, url)
    assert refused.value.status == status
    message = str(refused.value)
    assert message
    for word in (str(allowed), "secret", "passwd", "root:", "Errno", "object at"):
        assert word not in message
    assert set(connected) <= {PUBLIC}


@pytest.mark.parametrize("name", ["passwords", "passwords by path", "not there", "metadata"])
def test_all_is_closed_by_default(name, allowed, port):
    url, _ = attacks(allowed)[name]
    for kind in (url, f"file://{allowed}/cat.png", str(allowed / "cat.png")):
        with pytest.raises(MediaError, match=r"no (file|host) is allowed; it would need --allowed"):
            fetch(connector(on=network(port)), kind)


def test_a_file_that_may_not_be_read_gives_no_sign_of_being_there(allowed):
    said = set()
    for name in ("secret.png", "nothing.png", "allowed-not/secret.png", "allowed-not/nothing"):
        with pytest.raises(MediaError) as refused:
            fetch(connector(allowed), f"file://{allowed}/../{name}")
        said.add(str(refused.value))
    assert len(said) == 1


def test_what_is_allowed_is_read(allowed, port, monkeypatch):
    connected = []
    door = connector(allowed, ["pictures.example"], network(port, connected))
    monkeypatch.chdir(allowed)
    for url in (
        data_uri(encoded(picture(5))),
        data_uri(encoded(picture(5)), "IMAGE/png;name=a").replace("data:", "DATA:"),
        f"file://{allowed}/cat.png",
        f"file://localhost{allowed}/cat.png",
        f"FILE://{allowed}/c%61t.png",
        str(allowed / "cat.png"),
        "cat.png",
        f"{allowed}/up/allowed/cat.png",
    ):
        assert fetch(door, url).tobytes() == picture(5).tobytes(), url
    for url in (
        "http://pictures.example/a.png?b=c d".replace(" ", "%20"),
        "HTTP://Pictures.Example./a.png",
        "http://pictures.example/to?/a.png",
        "http://pictures.example:8080/to?http://pictures.example/ä.png",
    ):
        assert fetch(door, url).tobytes() == picture(0).tobytes(), url
    assert set(connected) == {PUBLIC}
    assert "/%C3%A4.png" in Handler.seen or "/%E4.png" in Handler.seen


def test_a_name_is_resolved_once_for_each_request(port):
    """The second answer of the name server, an address inside, is never asked for."""
    asked = []

    def resolve(name, to_port):
        asked.append(name)
        return [PUBLIC] if len(asked) == 1 else ["127.0.0.1"]

    on = download.Network(resolve, network(port).connect)
    assert fetch(connector(domains=["a.example"], on=on), "http://a.example/a.png")
    assert asked == ["a.example"]


def test_a_slow_host_is_left_when_its_time_is_over(port, monkeypatch):
    monkeypatch.setattr(download, "MOST_SECONDS", 0.3)
    with pytest.raises(MediaError, match="does not answer in time") as refused:
        fetch(connector(domains=["pictures.example"], on=network(port)),
              "http://pictures.example/slow")  # fmt: skip
    assert refused.value.status == 422


def test_a_host_that_is_not_there_is_named_as_such():
    def closed(address, to_port, seconds):
        raise ConnectionRefusedError(f"{address} in /root")

    for resolve, said in (
        (lambda name, to_port: [PUBLIC], "its host does not answer properly"),
        (lambda name, to_port: [], "an address that is not public"),
    ):
        on = download.Network(resolve, closed)
        with pytest.raises(MediaError, match=said):
            fetch(connector(domains=["a.example"], on=on), "https://a.example/a.png")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_host_of_https_shows_its_certificate(tmp_path, monkeypatch):
    """The connection goes to the checked address, and the certificate is of the URL's name."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            "-subj", "/CN=pictures.example", "-addext", "subjectAltName=DNS:pictures.example",
            "-keyout", str(key), "-out", str(certificate)]  # fmt: skip
    subprocess.run(made, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with host(context) as port:
        on = network(port)
        resolve = on.resolve
        on = download.Network(lambda *a: [PUBLIC] if a[0] == "other.example" else resolve(*a),
                              on.connect)  # fmt: skip
        door = connector(domains=["pictures.example", "other.example"], on=on)
        good = "https://pictures.example/a.png"
        with pytest.raises(MediaError, match="its host does not answer properly"):
            fetch(door, good)  # no authority vouches for it
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert fetch(door, good).tobytes() == picture(0).tobytes()
        with pytest.raises(MediaError, match="its host does not answer properly"):
            fetch(door, "https://other.example/a.png")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True), ("2606:2800:220:1::1", True), ("10.1.2.3", False),
        ("172.16.0.1", False), ("192.168.1.1", False), ("127.9.9.9", False), ("0.0.0.0", False),
        ("169.254.169.254", False), ("100.64.0.1", False), ("192.0.0.1", False),
        ("198.18.0.1", False), ("224.0.0.1", False), ("255.255.255.255", False), ("::1", False),
        ("::", False), ("::ffff:10.0.0.1", False), ("::ffff:93.184.216.34", False),
        ("fe80::1", False), ("fe80::1%eth0", False), ("fc00::1", False), ("ff02::1", False),
        ("2001:db8::1", False), ("2002:a00:1::", False), ("64:ff9b::a00:1", False),
        ("2001:0:a00:1::", False), ("name", False), ("", False),
    ],
)  # fmt: skip
def test_which_addresses_are_public(address, public):
    assert download.is_public(address) == public


def test_a_picture_becomes_rgb_over_white_or_what_is_asked_for():
    clear = Image.new("RGBA", (4, 4), (200, 0, 0, 0))
    clear.putpixel((0, 0), (10, 20, 30, 255))
    url = data_uri(encoded(clear))
    read = fetch(connector(), url)
    assert (read.mode, read.getpixel((0, 0)), read.getpixel((1, 1))) == (
        "RGB", (10, 20, 30), (255, 255, 255))  # fmt: skip
    black = {"rgba_background_color": [0, 0, 0]}
    assert fetch(connector(), url, image=black).getpixel((1, 1)) == (0, 0, 0)
    of_all = connector(media_io_kwargs={"image": black})
    assert fetch(of_all, url).getpixel((1, 1)) == (0, 0, 0)
    grey = fetch(of_all, url, image={"rgba_background_color": (9, 9, 9)})
    assert grey.getpixel((1, 1)) == (9, 9, 9), "the request's own wins"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "AVIF"])
def test_the_formats_that_people_send(kind):
    data = encoded(picture(3, (40, 31)), kind)
    read = fetch(connector(), data_uri(data, "application/octet-stream"))
    assert (read.mode, read.size) == ("RGB", (40, 31))


def test_pixels_are_counted_before_they_are_decoded(monkeypatch):
    monkeypatch.setattr(image, "MOST_PIXELS", 599)  # below PIL's own bound, too
    with pytest.raises(MediaError, match="it may have 599 pixels"):
        fetch(connector(), data_uri(encoded(picture())))
    assert fetch(connector(), data_uri(encoded(picture(0, (20, 29)))))


def test_large_pictures_are_decoded_one_at_a_time(monkeypatch):
    """Each takes much memory, and there may be many threads."""
    monkeypatch.setattr(image, "_LARGE", 100)
    inside, most = [], []
    plain = image.to_mode

    def slowly(*args):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()
        return plain(*args)

    monkeypatch.setattr(image, "to_mode", slowly)
    url = data_uri(encoded(picture()))
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(lambda _: fetch(connector(), url), range(8)))
    assert set(most) == {1}


def test_a_picture_is_turned_as_its_notes_say_and_they_may_be_broken():
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter turn
    upright = picture(4, (20, 30))
    lying = upright.transpose(Image.Transpose.ROTATE_90)
    read = fetch(connector(), data_uri(encoded(lying, exif=turned)))
    assert read.tobytes() == upright.tobytes()
    broken = encoded(upright, exif=b"Exif\x00\x00MM\x00*nothing of it")
    assert fetch(connector(), data_uri(broken)).tobytes() == upright.tobytes()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P", "L", "1", "CMYK", "I;16"])
def test_clear_parts_of_any_mode_are_white(mode):
    """Modes that can have them; a palette by its own note of which colour is clear."""
    drawn = Image.new("RGBA", (4, 4), (200, 0, 0, 0))
    options = {}
    if mode == "P":
        drawn = drawn.convert("RGB").quantize(4)
        options = {"transparency": 0}
    elif mode not in ("RGBA", "PA"):
        drawn = Image.new(mode, (4, 4))
    kind = "TIFF" if mode == "CMYK" else "PNG"
    read = fetch(connector(), data_uri(encoded(drawn, kind, **options)))
    clear = mode in ("RGBA", "LA", "PA", "P")
    want = (255, 255, 255) if clear or mode == "CMYK" else (0, 0, 0)
    assert read.getpixel((1, 1)) == want
