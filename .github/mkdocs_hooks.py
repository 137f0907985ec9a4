"""Hooks of the site: the diagrams come along, though they are not among the pages."""

import re
from pathlib import Path

from mkdocs.structure.files import File

DIAGRAMS = Path(__file__).parents[1] / "diagrams"


def on_files(files, config):
    for path in sorted(DIAGRAMS.glob("*.svg")):
        files.append(File.generated(config, f"diagrams/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """README.md beside the notebooks is the first page; its diagrams are now below it.

    What stands elsewhere in the repository is no page: such a link becomes its text.
    """
    if page.is_homepage:
        return markdown.replace("](../diagrams/", "](diagrams/")
    markdown = markdown.replace("](../../diagrams/", "](../diagrams/")
    return re.sub(r"\[([^\]]*)\]\(\.\./\.\./[^)]*\)", r"\1", markdown)
