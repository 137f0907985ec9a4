"""Fonts of the site: fetched from npm when it is built. What has no server uses the system's."""

from pathlib import Path

from minivllm.course.playground.build import npm_files

# Package of npm, the file of it, and the family as tokens.css names it.
FONTS = (
    ("@fontsource-variable/inter@5.3.0", "inter-latin-wght-normal", "Inter Variable"),
    ("@fontsource-variable/source-serif-4@5.3.1", "source-serif-4-latin-wght-normal",
     "Source Serif 4 Variable"),
    ("@fontsource-variable/jetbrains-mono@5.3.0", "jetbrains-mono-latin-wght-normal",
     "JetBrains Mono Variable"),
)  # fmt: skip
FACE = """\
@font-face {{ font-family: "{family}"; src: url({file}.woff2) format("woff2"); font-weight: 200 900;
  font-display: swap; unicode-range: U+20-17F, U+2010-203A, U+20AC, U+2122, U+2190-2193, U+2212; }}
"""


def fetch_fonts(directory: Path) -> None:
    """Write the fonts, their licence and a style sheet that names them.

    Raises:
        ValueError: if npm cannot fetch them.
    """
    faces = []
    for package, file, family in FONTS:
        npm_files(package, [f"files/{file}.woff2", "LICENSE"], directory)
        (directory / "LICENSE").rename(directory / f"{file}.LICENSE")
        faces.append(FACE.format(family=family, file=file))
    (directory / "fonts.css").write_text("".join(faces), encoding="utf-8")
