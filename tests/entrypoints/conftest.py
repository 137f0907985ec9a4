"""The site for tests marked browser: built once, and pages of it."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from static_site import serving_folder

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """A site below a prefix, as GitHub Pages has that of a project."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict",
         "-f", ROOT / ".github/mkdocs.yml", "-d", folder / "minivllm"],
        env=os.environ | {"SITE_URL": "https://example.org/minivllm/"}, check=True,
    )  # fmt: skip
    with serving_folder(folder) as url:
        yield url + "minivllm/"


@pytest.fixture(scope="module")
def page(chromium, site):
    """A page that has asked this server alone in the end, and said nothing."""
    noise, requests = [], []
    page = chromium.new_page(reduced_motion="reduce")
    page.on("console", lambda message: noise.append(message.text))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    yield page
    page.close()
    assert not noise
    here = urlsplit(site).netloc
    assert {urlsplit(url).netloc for url in requests if not url.startswith("data:")} == {here}


@pytest.fixture(scope="module")
def still(chromium):
    """A page without scripts, which is there at once; its layout is the same."""
    context = chromium.new_context(java_script_enabled=False)
    yield context.new_page()
    context.close()
