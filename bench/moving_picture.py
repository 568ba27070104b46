"""Draw the README's moving picture from the real page: a slider of the Batch view moves, the marks follow.

    uv run python bench/moving_picture.py

Exports what the Batch view needs, opens it in Chromium, sets one batch size after the other, and writes
docs/images/page-moving.svg and page-moving-dark.svg: what all frames have in common stands once, what differs is shown
in turn by a style sheet; where motion is unwanted, the last frame stands still.
"""

from __future__ import annotations

import copy
import html
import re
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, sync_playwright

from rackline.web.app import export
from rackline.web.data import scenarios

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
CHROMIUM = "/usr/bin/chromium"
VIEW = "batch?s=deepseek-v3&c=4096"
BATCHES = tuple(2**power for power in range(3, 13))
FRAME_S = 0.9
WIDTH, HEIGHT, HEAD = 560, 320, 108  # of the picture, and of the words above it [pixels]
SVG = "http://www.w3.org/2000/svg"
SHOWN = "() => document.querySelector('.body').hasAttribute('data-ready')"
MARK = "batch => rackline.drawn.get('step').rows.marks[0].batch_size === batch"
NAMES = "all => all.map(one => [one.textContent, getComputedStyle(one.querySelector('i')).color])"
LETTER = 7.2  # width of a letter of the names [pixels]
COLOURS = {"light": ("#ffffff", "#1b1f24", "#59626c"), "dark": ("#15181d", "#e8eaed", "#a3acb6")}
NUMBER = re.compile(r"-?\d+\.\d{2,}")


def frames(page: Page, root: str) -> list[tuple[str, str]]:
    """The drawing and the first sentence of each batch size."""
    found: list[tuple[str, str]] = []
    for batch in BATCHES:
        page.goto(f"{root}#/{VIEW}&b={batch}")
        page.wait_for_function(SHOWN)
        page.wait_for_function(MARK, arg=batch)
        drawn = page.evaluate("() => rackline.drawn.get('step').view.runAsync().then(view => view.toSVG())")
        found.append((drawn, page.inner_text("#answer").partition(". ")[0] + "."))
    return found


def merged(nodes: Sequence[ET.Element]) -> list[ET.Element]:
    """What the frames have in common once; what differs as a group a frame."""
    first = nodes[0]
    texts = {ET.tostring(node) for node in nodes}
    if len(texts) == 1:
        return [first]
    own = {(node.tag, tuple(sorted(node.attrib.items())), (node.text or "").strip(), len(node)) for node in nodes}
    if len(own) == 1 and len(first):
        found = ET.Element(first.tag, first.attrib)
        for children in zip(*nodes, strict=True):
            found.extend(merged(children))
        return [found]
    return [in_turn(place, [node]) for place, node in enumerate(nodes)]


def in_turn(place: int, shown: Iterable[ET.Element]) -> ET.Element:
    """A group that is seen in one frame."""
    group = ET.Element(f"{{{SVG}}}g", {"class": f"f f{place}"})
    group.extend(copy.deepcopy(one) for one in shown)
    return group


def picture(found: Sequence[tuple[str, str]], series: Sequence[tuple[str, str]], look: str) -> str:
    """The moving picture.

    Args:
        found: drawings and sentences.
        series: names and colours of the lines.
    """
    ground, ink, muted = COLOURS[look]
    drawings = [ET.fromstring(NUMBER.sub(lambda one: f"{float(one[0]):.1f}", drawn)) for drawn, _ in found]
    words = [
        f'<g class="f f{place}" fill="{muted}" font-size="14">'
        + "".join(
            f'<text x="16" y="{50 + 20 * row}">{html.escape(line)}</text>'
            for row, line in enumerate(said.replace(", and ", "\nand ").split("\n"))
        )
        + "</g>"
        for place, (_, said) in enumerate(found)
    ]
    names: list[str] = []
    left = 16.0
    for name, stroke in series:
        names.append(
            f'<text x="{left:.0f}" y="95" fill="{ink}" font-size="13">'
            f'<tspan fill="{stroke}" font-weight="700">━ </tspan>{html.escape(name)}</text>'
        )
        left += 36 + LETTER * len(name)
    body = "".join(ET.tostring(one, encoding="unicode") for one in merged(drawings))
    step, last = 100.0 / len(found), len(found) - 1
    style = (
        f".f{{visibility:hidden;animation:turn {FRAME_S * len(found):g}s step-end infinite}}"
        f"@keyframes turn{{0%{{visibility:visible}}{step:g}%{{visibility:hidden}}100%{{visibility:hidden}}}}"
        + "".join(f".f{place}{{animation-delay:{FRAME_S * place:g}s}}" for place in range(len(found)))
        + f"@media (prefers-reduced-motion:reduce){{.f{{animation:none}}.f{last}{{visibility:visible}}}}"
    )
    return (
        f'<svg xmlns="{SVG}" viewBox="0 0 {WIDTH} {HEIGHT + HEAD}" width="{WIDTH}" height="{HEIGHT + HEAD}" '
        f'font-family="system-ui, Helvetica, Arial, sans-serif"><style>{style}</style>'
        f'<rect width="100%" height="100%" fill="{ground}"/>'
        f'<text x="16" y="26" fill="{ink}" font-size="17" font-weight="600">How many users should share a pass?</text>'
        f'{"".join(words)}{"".join(names)}<g transform="translate(0, {HEAD})">{body}</g></svg>\n'
    )


def main() -> None:
    """Write both looks."""
    ET.register_namespace("", SVG)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        export(folder, names=("site", "ledger", *(f"scenario-{one.name}" for one in scenarios())))
        browser = play.chromium.launch(executable_path=CHROMIUM)
        looks: tuple[tuple[Literal["light", "dark"], str], ...] = (("light", ""), ("dark", "-dark"))
        for look, ending in looks:
            page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=look)
            root = (Path(folder) / "index.html").as_uri()
            page.goto(f"{root}#/{VIEW}")
            page.wait_for_selector("[data-figure=step] svg")
            page.evaluate(
                "([wide, high]) => { rackline.drawn.get('step').view.width(wide).height(high).run(); }",
                [WIDTH, HEIGHT],
            )
            series = page.eval_on_selector_all("[data-figure=step] .legend .key", NAMES)
            path = IMAGES / f"page-moving{ending}.svg"
            drawn = picture(frames(page, root), series, look)
            path.write_text(drawn, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
        browser.close()


if __name__ == "__main__":
    main()
