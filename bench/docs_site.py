"""What mkdocs does beyond Markdown, hooked in by mkdocs.yml: formulas, generated references, names of code as links.

- "folder/*.md" in the navigation stands for the pages of a folder, "**/*.md" for all that have no place yet.
- A fence `math` and $`...`$, which GitHub shows as formulas too, become MathML, so that no script draws them.
- `rackline.x.y` in backticks links to its place in the reference; a name that does not exist stops the build.
- Numbers that bench/refresh_docs.py filled in stay, the expressions behind them go.
- Pages of the reference are made from the code: one for each command, one for each package.
- The front page has the Batch figure of the page in the browser, which is exported into the site as `page/`.
- Notebooks are pages with their stored outputs; a link to one leads to its page.
"""

from __future__ import annotations

import html
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).resolve().parent))

from docs_notebooks import (
    pages as notebook_pages,  # siblings in this folder
    pictures as notebook_pictures,
)
from docs_reference import CITED, cited_names, pages

PAGE = "page"  # folder of the site that holds the page of `rackline web --export`
LIVE = (
    f'<iframe class="live" src="{PAGE}/index.html#/batch" '
    'title="Time and cost of a decode step, with sliders"></iframe>'
    f'<p><a href="{PAGE}/index.html">The whole page</a>: plans, prices, traffic, training, the lecture as figures that '
    "move; <code>rackline web</code> opens it on your machine, where it answers every question.</p>"
)

log = logging.getLogger("mkdocs.hooks.rackline")

IN_LINE = re.compile(r"\$<code>(.+?)</code>\$", re.S)
FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,}).*?^[ \t]*\1[ \t]*$", re.M | re.S)
PICTURE = re.compile(r'<picture><source[^>]*srcset="([^"]+)"[^>]*><img alt="([^"]*)" src="([^"]+)"></picture>')
NOTEBOOK = re.compile(r"\]\(((?:\.\./|notebooks/)?[\w-]+)\.ipynb\)")
TABLE = re.compile(r"<table>(.*?)</table>", re.S)
PERCENT = re.compile(r"(?<=\d) %")  # a line does not break there
SEARCH = 'data-md-component="search"'
FILLED = re.compile(r"(?<!`)<!--= .+? -->(.*?)<!--/-->", re.S)


def formula(latex: str, *, block: bool) -> str:
    """LaTeX as MathML.

    Raises:
        ValueError: LaTeX that the converter does not know: it would leave the command as text.
    """
    found = convert(latex.strip(), display="block" if block else "inline")
    unknown = re.findall(r"<m[io]>(\\\w+)</m[io]>", found)
    if unknown:
        raise ValueError(f"{latex.strip()}: {', '.join(unknown)} is not known")
    label = html.escape(" ".join(latex.split()), quote=True)
    return found.replace("<math ", f'<math tabindex="0" aria-label="{label}" ' if block else "<math ", 1)


def fence(source: str, language: str, css_class: str, options: Any, md: Any, **_: Any) -> str:
    """The fence `math`, as pymdownx.superfences asks for it."""
    try:
        return formula(source, block=True)
    except Exception as error:
        log.warning("formula: %s", error)
        return f"<pre>{html.escape(source)}</pre>"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put in the fence, and the pages that stand for "*.md"."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {}).setdefault("custom_fences", [])
    fences.append({"name": "math", "class": "formula", "format": fence})
    made = [*(f"reference/{name}" for name in pages()), *notebook_pages()]
    docs = Path(config.docs_dir)
    there = [path.relative_to(docs).as_posix() for path in docs.rglob("*.md") if docs / "history" not in path.parents]
    config.nav = _expanded(config.nav, sorted({*there, *made}))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference and of the notebooks."""
    made = {f"reference/{name}": text for name, text in pages().items()} | notebook_pages() | notebook_pictures()
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Names of code as links, outside of fences; notebooks by their pages, but for the link that downloads one."""
    if page.file.src_uri not in notebook_pages():
        markdown = NOTEBOOK.sub(r"](\1.md)", markdown)
    parts: list[str] = []
    end = 0
    for found in FENCE.finditer(markdown):
        parts += [_linked(markdown[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*parts, _linked(markdown[end:])])


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas in the line as MathML; tables in boxes that scroll, also by the keyboard; pictures by look."""

    def written(found: re.Match[str]) -> str:
        try:
            return formula(html.unescape(found[1]), block=False)
        except Exception as error:
            log.warning("%s: formula: %s", page.file.src_uri, error)
            return found[0]

    content = IN_LINE.sub(written, content)
    if page.file.src_uri == "index.md":
        content = PICTURE.sub(LIVE, content, count=1)  # where Markdown is shown as it is, the picture stays
    content = PICTURE.sub(
        r'<img alt="\2" src="\3#only-light"><img alt="\2" src="\1#only-dark">', content
    )  # the theme's switch decides, not the system
    content = content.replace("<th></th>", "<td></td>")  # a heading without words is none
    return TABLE.sub(r'<div class="table" tabindex="0"><table class="plain">\1</table></div>', content)


def on_post_build(config: MkDocsConfig) -> None:
    """Export the page into the site; `RACKLINE_DOCS_PAGE=batch` exports what the front page draws alone."""
    from rackline.web.app import export
    from rackline.web.data import scenarios

    first = ("site", "ledger", *(f"scenario-{one.name}" for one in scenarios()))
    export(Path(config.site_dir) / PAGE, names=first if os.environ.get("RACKLINE_DOCS_PAGE") == "batch" else None)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The theme's search is a dialog without a name."""
    return _search_named(output)


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same on pages that are not made from Markdown, such as 404.html."""
    return _search_named(output_content)


def _search_named(output: str) -> str:
    return output.replace(f'{SEARCH} role="dialog"', f'{SEARCH} role="dialog" aria-label="Search"')


def _linked(text: str) -> str:
    """Names of code as links, and without the expressions behind numbers that are filled in."""
    known = cited_names()
    text = PERCENT.sub("\N{NO-BREAK SPACE}%", FILLED.sub(r"\1", text))
    return CITED.sub(lambda name: f"[{name[0]}][{known[name[1]]}]" if name[1] in known else name[0], text)


def _expanded(nav: Any, there: list[str], taken: set[str] | None = None) -> list[Any]:
    """The navigation with the pages of folders put in; a section that stays empty is left out."""
    taken = set() if taken is None else taken
    found: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            ((title, below),) = entry.items()
            if isinstance(below, list):
                inner = _expanded(below, there, taken)
                found += [{title: inner}] if inner else []
                continue
            taken.add(below)
            found.append(entry)
        elif entry.endswith("*.md"):
            folder = entry.removesuffix("*.md").removesuffix("**/")
            new = [name for name in there if name.startswith(folder) and name not in taken]
            new.sort(key=lambda name: not name.endswith("/index.md"))
            taken.update(new)
            found += new
        else:
            taken.add(entry)
            found.append(entry)
    return found
