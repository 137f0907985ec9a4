"""The link that opens a notebook in Colab, once `[project.urls]` has an address on GitHub."""

import re
from html import escape
from pathlib import Path

from minivllm.lab.translation import translated
from minivllm.utils.toml_data import tomllib

PROJECT = Path(__file__).parents[2] / "pyproject.toml"

GITHUB = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?$")


def project_urls() -> dict[str, str]:
    return tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"].get("urls", {})


def repository_of(urls: dict[str, str]) -> re.Match | None:
    """The address on GitHub and in it owner and name, if there is one."""
    return next(filter(None, map(GITHUB.match, urls.values())), None)


def colab(urls: dict[str, str], name: str) -> str:
    """HTML, or nothing without an address."""
    repository = repository_of(urls)
    if repository is None:
        return ""
    place = f"{repository[1]}/blob/main/notebooks/{name}"
    install = f'%pip install "minivllm[notebooks] @ git+{repository[0]}"'
    return (
        f'<a class="colab" href="https://colab.research.google.com/github/{escape(place)}">'
        f"{translated('Open in Colab')}</a> "
        f"<span>{translated('run there first:')} <code>{escape(install)}</code></span>"
    )
