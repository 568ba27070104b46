"""The pages of the lab are those that bench/lab_pages.py writes from the stored results."""

from __future__ import annotations

from pathlib import Path

from scripts import load_script

ROOT = Path(__file__).resolve().parents[2]


def test_pages_follow_from_the_stored_results() -> None:
    script = load_script("lab_pages")
    found = script.read_experiments(script.STORED)
    assert (ROOT / "docs" / "lab.md").read_text(encoding="utf-8") == script.index(found)
    assert script.VIEW.read_text(encoding="utf-8") == script.view(found, script.STORED)
    for one in found:
        assert (script.PAGES / f"{one.name}.md").read_text(encoding="utf-8") == script.page(one)
        assert (script.IMAGES / f"lab-{one.name}.svg").is_file()
    assert {path.stem for path in script.PAGES.iterdir()} == {one.name for one in found}
