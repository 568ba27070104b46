"""The pages of the lab show the stored results: the same words and rows, not the same digits of what is predicted."""

from __future__ import annotations

from pathlib import Path

from scripts import load_script

ROOT = Path(__file__).resolve().parents[2]


def test_pages_follow_from_the_stored_results() -> None:
    script, shape = load_script("lab_pages"), load_script("shown").shape
    written = {path: text for path, text in script.pages() if path.suffix in (".md", ".json", ".toml")}
    for path, text in written.items():
        assert shape(path.read_text(encoding="utf-8")) == shape(text), f"{path.name}: run bench/refresh_docs.py"
    names = {one.name for one in script.read_experiments(script.STORED)}
    assert {path.stem for path in script.PAGES.iterdir()} == names
    assert {path.stem for path in written if path.parent == script.PAGES} == names
    assert all((script.IMAGES / f"lab-{name}.svg").is_file() for name in names)
