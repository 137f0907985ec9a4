"""Hooks of the site: pages made of notebooks, a map with cards, and the playground beside them.

What a page shows is made by the files in pages/, and looks as the template in pages/theme/ says.
"""

import json
import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url
from pages import guess, language, lecture, notebook
from pages.cards import MAP, the_map, with_cards, with_map
from pages.code import code_page
from pages.drawings import in_language
from pages.fonts import fetch_fonts
from pages.glossary import with_entries, with_notes
from pages.home import home_page
from pages.language import FOLDER, LANGUAGE, TAG, is_translated, path_of
from pages.links import text_of, with_labels, with_lectures
from pages.messages import script_of_words
from pages.search import sections_of
from pages.toy import toy
from pygments.formatters import HtmlFormatter

from minivllm.course.playground.build import NEEDED_BY_PYTHON, build, npm_files
from minivllm.course.playground.texts import page_of as page_of_playground
from minivllm.lab.translation import translated
from minivllm.lab.viz.page.page import InLanguage

HERE = Path(__file__).parent
ROOT = HERE.parent
NOTEBOOKS = ROOT / "notebooks"
DIAGRAMS = ROOT / "diagrams"
THEME = HERE / "pages/theme"
TOKENS = ROOT / "minivllm/lab/viz/page/tokens.css"
MINISEARCH = "minisearch@7.2.0"
LECTURE = re.compile(r"((?:\d\d|A\d)b?)_\w+\.md$|(90)_minutes\.md$")
# The cheat sheet is one page of paper.
PRINT_ON_ONE_PAGE = """
<style>@media print {
  @page { size: A4 landscape; margin: 10mm; }
  main { columns: 2; }
  article, article table { font-size: 8pt; }
  article :is(th, td) { padding: 1pt 4pt; }
  article :is(h1, p, .table) { margin: 0 0 4pt; }
}</style>
"""


def on_config(config):
    config.extra["map"] = the_map()
    config.extra["sections"] = []
    config.extra["tag"] = TAG
    config.extra["folder"] = FOLDER
    config.extra["first"] = (config.site_url or "").removesuffix(FOLDER)
    config.site_description = translated(config.site_description)


def on_env(env, config, files):
    env.globals["_"] = language.on_page
    if FOLDER:
        env.add_extension(InLanguage)


def on_files(files, config):
    """Make pages of notebooks; README.md beside them is the page course.html."""
    course = (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
    made = {"code.md": code_page()}
    for file in list(files):
        uri, path = file.src_uri, Path(file.abs_src_path)
        # Jupyter's copies; siblings, which stand in for their sources; and what is at the root
        is_shared = FOLDER and path.is_relative_to(THEME)
        if ".ipynb_checkpoints" in path.parts or uri.startswith("zh/") or is_shared:
            files.remove(file)
        elif path.suffix in (".ipynb", ".md"):
            files.remove(file)
            made[page_of(uri)] = language.text_of(uri)
            if path.suffix == ".ipynb":  # it stays beside its page, for readers who have Jupyter
                files.append(File.generated(config, uri, abs_src_path=str(path_of(uri))))
    uris = lectures(made)
    running = sum(number in notebook.ON_THEIR_PAGE for number in uris if number != "90")
    made["index.md"] = home_page(minutes_of(course), uris, running, lecture.repository())
    pages = [File.generated(config, uri, content=text) for uri, text in made.items()]
    assets = {} if FOLDER else {"tokens.css": TOKENS}
    assets |= {f"diagrams/{path.name}": path for path in DIAGRAMS.glob("*.svg") if path != MAP}
    pages += [File.generated(config, uri, abs_src_path=str(path)) for uri, path in assets.items()]
    pages.append(File.generated(config, "toy.json", content=toy()))
    name, content = ("words.js", script_of_words()) if FOLDER else ("code.css", colours_of_code())
    pages.append(File.generated(config, name, content=content))
    for page in pages:
        files.append(page)
    all_pages = sorted(file.src_uri for file in files if file.src_uri.endswith(".md"))
    config.extra["lectures"] = uris
    config.extra["guide"] = [uri for uri in all_pages if uri.startswith("guide/")]
    config.extra["teach"] = [uri for uri in all_pages if uri.startswith("teach/")]
    config.nav = [
        {"minivllm": "index.md"},
        {"Course": ["course.md", *uris.values()]},
        {"Read the code": "code.md"},
        {"Guide": config.extra["guide"]},
        {"For teachers": config.extra["teach"]},
    ]
    return files


def page_of(uri):
    """The page that is made of a notebook or a text; README.md beside them is course.html."""
    return re.sub(r"ipynb$", "md", uri.replace("README.md", "course.md"))


def lectures(made):
    """Pages of the lectures by number, in the order of the course."""
    found = {match[1] or match[2]: uri for uri in sorted(made) if (match := LECTURE.match(uri))}
    return dict(sorted(found.items(), key=lambda item: item[0] == "90"))


def minutes_of(course):
    """Minutes of reading by lecture, from the overview's table."""
    return {number: int(minutes) for number, minutes in
            re.findall(r"^\| \[(\w+) · .*?\| (\d+) \|", course, re.MULTILINE)}  # fmt: skip


def colours_of_code():
    """Colours of code for a light and a dark page, from two of Pygments' styles."""

    def of(style):  # of letters alone: paper and numbers of lines are the page's own
        rules = HtmlFormatter(style=style).get_style_defs(".highlight").splitlines()
        return "\n".join(rule for rule in rules if rule.startswith(".highlight ."))

    dark = of("github-dark")
    return (
        f"{of('default')}\n@media (prefers-color-scheme: dark) {{\n"
        f':root:not([data-theme="light"]) {{ {dark} }}\n}}\n:root[data-theme="dark"] {{ {dark} }}\n'
    )


def on_page_markdown(markdown, page, config, files):
    """Links lead to pages of this site; what is elsewhere in the repository becomes its text."""
    uri, extra = page.file.src_uri, config.extra
    page.meta["kind"] = kind_of(uri)
    page.meta["untranslated"] = FOLDER and not is_translated(uri)
    if uri == "index.md":
        title = translated("How an LLM server works, in Python you can read")
        page.meta["title"] = f"{title} · minivllm"
    elif uri == "course.md":
        markdown = with_map(with_cards(markdown))
    elif uri == "guide/glossary.md":
        markdown = with_entries(markdown)
    for folder, title in (("guide", translated("Guide")), ("teach", translated("For teachers"))):
        if uri.startswith(f"{folder}/"):
            page.meta["part"] = {"title": title, "uris": extra[folder]}
    if (path := notebook_of(page)) is not None:
        number, uris = notebook.number_of(path), extra["lectures"]
        later = dict(zip(uris, [*list(uris)[1:], None], strict=True))[number]
        page.meta["part"] = lecture.part_of(number, uris)
        page.meta["words"] = lecture.words_of(number)
        page.meta["prefetch"] = NEEDED_BY_PYTHON if notebook.runs_on_its_page(path) else ()
        if later and later != "90":
            page.meta["after"] = uris[later]
            page.meta["question"] = lecture.question_of(path_of(f"{uris[later][:-3]}.ipynb"))
        title, rest = markdown.split("\n", 1)
        markdown = f"{title}\n\n{lecture.run_line(path)}\n{rest}"
    markdown = re.sub(r"\]\(((?:\.\./)?)README\.md", r"](\1course.md", markdown)
    markdown = re.sub(
        r"\[([^\]]*)\]\(zh/README\.md\)", r'<a href="zh/course.html" lang="zh-CN">\1</a>', markdown
    )
    markdown = re.sub(r"\]\(([^):]+)\.ipynb", r"](\1.md", markdown)
    inside = "../" if "/" in uri else ""
    markdown = re.sub(r"\]\((?:\.\./)+diagrams/", f"]({inside}diagrams/", markdown)
    outside = re.escape("../" + inside)
    markdown = re.sub(rf"\[([^\]]*)\]\({outside}[^)]*\)", r"\1", markdown)
    return markdown + (PRINT_ON_ONE_PAGE if uri == "guide/cheat-sheet.md" else "")


def kind_of(uri):
    """How wide a page is: a lecture has a list beside it, and some tables need the whole window."""
    if uri == "index.md":
        return "home"
    if LECTURE.match(uri):
        return "lecture"
    return "broad" if uri in ("code.md", "guide/vllm-map.md", "course.md") else "text"


def on_page_content(html, page, config, files):
    """Finish a page: what is found in it, its cells, its pictures, its links to lectures."""
    path = notebook_of(page)
    hrefs = {number: get_relative_url(to.replace(".md", ".html"), page.url)
             for number, to in config.extra["lectures"].items()}  # fmt: skip
    config.extra["sections"] += sections_of(html, page.url, text_of(page.title))
    page.meta["description"] = description_of(html, page, config)
    html = re.sub(
        r'<p><img alt="([^"]*)" src="(?:\.\./)?diagrams/(\w+\.svg)" ?/?></p>',
        lambda image: notebook.figure(drawing(image[2])),
        html,
    )
    folder = (NOTEBOOKS / page.file.src_uri).parent
    html = re.sub(
        r'<p>(<img alt="[^"]*" src="([\w/]+\.png)" ?/?>)</p>',
        lambda image: notebook.in_box(
            image[1], "img", notebook.width_of((folder / image[2]).read_bytes())
        ),
        html,
    )
    html = with_lectures(with_labels(html), hrefs, notebook.number_of(path) if path else "")
    if path is not None:
        html = with_notes(guess.folded(html)) + lecture.quiz_of(notebook.number_of(path))
        html = notebook.fill(html, path)
    return html


def description_of(html, page, config):
    """A page's first words, for searches and links elsewhere: what a lecture teaches, or a text."""
    if page.file.src_uri == "index.md":
        return config.site_description
    told = re.findall(r"<(?:li|p)>(.*?)</(?:li|p)>", html, re.DOTALL)
    said = next((text for text in map(text_of, told) if len(text) > 30), "")
    return f"{text_of(page.title)}: {said[:150]}"


def drawing(name):
    """A picture's SVG in the language of the half; those of notebooks lie beside them."""
    found = (folder / name for folder in (DIAGRAMS, NOTEBOOKS / "diagrams"))
    svg = next(path for path in found if path.exists()).read_text(encoding="utf-8")
    return in_language(svg)


def on_post_page(output, page, config):
    """The playground is at the root, with a page in each language."""
    there = f"../playground/{page_of_playground(LANGUAGE)}"
    return output.replace("playground/index.html", there) if FOLDER else output


def on_post_template(output_content, template_name, config):
    return on_post_page(output_content, None, config)


def on_post_build(config):
    """Make the playground, whose Python runs the notebooks, too; and what comes from npm."""
    site = Path(config.site_dir)
    found = json.dumps(config.extra["sections"], ensure_ascii=False, separators=(",", ":"))
    (site / "search.json").write_text(found, encoding="utf-8")
    if FOLDER:
        return
    try:
        build(site / "playground")
        fetch_fonts(site / "fonts")
        with_fonts(site / "playground/tokens.css")
        npm_files(MINISEARCH, ["dist/es/index.js"], site)
        language.build_others(config)
    except ValueError as error:
        raise PluginError(str(error)) from error
    (site / "index.js").rename(site / "minisearch.js")


def with_fonts(path):
    """Give the playground the site's letters; without a site it has the system's."""
    tokens = path.read_text(encoding="utf-8")
    path.write_text(f'@import url("../fonts/fonts.css");\n{tokens}', encoding="utf-8")


def notebook_of(page):
    """The notebook that a page is made of."""
    path = path_of(f"{page.file.src_uri.removesuffix('.md')}.ipynb")
    return path if path.is_file() else None
