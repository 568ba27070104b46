"""Rewrite what the docs show of the program: numbers, outputs, figures, tables and notebooks.

    uv run --group dev python bench/refresh_docs.py             # all parts but the long ones
    uv run --group dev python bench/refresh_docs.py --list      # the parts, with the time that each takes
    uv run --group dev python bench/refresh_docs.py --only figures/roofline --only numbers
    uv run --group dev python bench/refresh_docs.py --check     # what is stale; nothing is written

Run it after a change that moves numbers, and read the difference before you commit it. The exit status is 1 if a page
has to be mended by hand, or with `--check` if anything is stale.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from shown import DOCS, ROOT, pages

BENCH, TESTS = ROOT / "bench", ROOT / "tests"
MEASURED = ROOT.parent / "shared" / "measured"
CHROMIUM = Path("/usr/bin/chromium")
_COUNTED = re.compile(r"(clip|gradient_)\d+")  # names in a drawing, counted over the drawings of a process


@dataclass(slots=True, kw_only=True)
class Run:
    """One run of the command.

    Args:
        folder: of the pages that are written: the repository, or a folder that has the same layout.
        name: the only page, figure, table or notebook that is wanted; "" for all of a part.
        faults: what a person has to mend.
    """

    folder: Path
    name: str = ""
    faults: list[str] = field(default_factory=list[str])

    def source(self, path: Path) -> Path:
        """Return the file to start from: the one in the folder, if an earlier part wrote it."""
        written = self.folder / path.relative_to(ROOT)
        return written if written.is_file() else path

    def text(self, path: Path) -> str:
        """Read that file."""
        return self.source(path).read_text(encoding="utf-8")

    def wants(self, *names: str) -> bool:
        """Check whether something with one of these names is wanted."""
        return self.name in ("", *names)


Files = Iterator[tuple[Path, str]]


def numbers(run: Run) -> Files:
    """Fill in the numbers of the prose and what Python examples print, page by page."""
    script = load(BENCH / "fill_docs.py")
    for page in pages():
        text = run.text(page)
        if run.wants(page.stem, page.relative_to(ROOT).as_posix()) and (script.FILLED.search(text) or ">>> " in text):
            with (
                tempfile.TemporaryDirectory() as folder,
                contextlib.chdir(folder),  # some examples write files
                contextlib.redirect_stdout(io.StringIO()),
            ):
                after = script.filled(run.source(page))
            yield page, after


def outputs(run: Run) -> Files:
    """Fill in what the commands of the tutorials and of README print."""
    tutorials = load(BENCH / "tutorials.py")
    for page in tutorials.PAGES:
        if run.wants(page.stem):
            text, faults = tutorials.refreshed(run.text(page))
            if page.name != "README.md":
                faults += tutorials.unexplained(text)
            run.faults += [f"{page.relative_to(ROOT)}: {fault}" for fault in faults]
            yield page, text


def figures(run: Run) -> Files:
    """Draw the pictures of docs/images, and write the page that shows them."""
    script = load(BENCH / "figures.py")
    for picture in script.PICTURES:
        if run.wants(picture.name):
            if picture.measured and not MEASURED.is_dir():
                print(f"  {picture.name}: needs measured cases that are not part of the repository; left as it is")
                continue
            figure = script.made(picture)
            for look in script.THEME_NAMES:
                yield script.file_of(picture, look), figure.svg(look)
    if run.wants("figures"):
        yield script.PAGE, script.page()


def notebooks(run: Run) -> Files:
    """Run the notebooks and store their outputs."""
    import nbformat

    script = load(BENCH / "notebooks.py")
    for path in sorted(script.NOTEBOOKS.glob("*.ipynb")):
        if run.wants(path.stem):
            after = script.run(path)
            stored = nbformat.read(path, as_version=4)
            same = script.texts(after) == script.texts(stored)
            yield path, path.read_text(encoding="utf-8") if same else nbformat.writes(after) + "\n"


def lab(run: Run) -> Files:
    """Write the pages of the experiments from the stored results."""
    return (pair for pair in load(BENCH / "lab_pages.py").pages() if run.wants(pair[0].stem))


def lecture(run: Run) -> Files:
    """Write the page of the lecture."""
    from rackline.ledger.table import ledger, page

    yield DOCS / "lecture.md", page(ledger())


def packages(run: Run) -> Files:
    """Write the table of packages in docs/architecture.md."""
    script = load(BENCH / "packages.py")
    yield script.PAGE, block(run.text(script.PAGE), script.BEGIN, script.END, script.table())


def tables(run: Run) -> Files:
    """Write the tables of docs/accuracy and docs/speed.md that follow from the code and stored measurements."""
    head_to_head, speed = load(BENCH / "head_to_head.py"), load(BENCH / "speed.py")
    accuracy = DOCS / "accuracy"
    if run.wants("headline"):
        script = load(TESTS / "validation" / "headline.py")
        yield (
            accuracy / "servers.md",
            block(run.text(accuracy / "servers.md"), script.BEGIN, script.END, script.table()),
        )
    if run.wants("prices"):
        script = load(TESTS / "validation" / "prices.py")
        yield accuracy / "prices.md", block(run.text(accuracy / "prices.md"), script.BEGIN, script.END, script.table())
    if run.wants("training") and (ROOT.parent / "shared" / "facts").is_dir():
        script = load(TESTS / "validation" / "training_facts.py")
        page = accuracy / "training.md"
        yield page, block(run.text(page), script.BEGIN, script.END, script.markdown())
    if run.wants("memory"):
        script = load(TESTS / "golden" / "test_kv_capacity.py")
        yield script.PAGE, block(run.text(script.PAGE), script.BEGIN, script.END, script.table())
    if run.wants("head-to-head"):
        stored = json.loads(head_to_head.STORED.read_text(encoding="utf-8"))
        text = head_to_head.markdown(stored)
        yield head_to_head.PAGE, block(run.text(head_to_head.PAGE), head_to_head.BEGIN, head_to_head.END, text)
    if run.wants("speed"):
        yield speed.PAGE, speed.filled(run.text(speed.PAGE), json.loads(speed.STORED.read_text(encoding="utf-8")))


def intervals(run: Run) -> Files:
    """Write the coverage of the shipped intervals over all measured cases."""
    script = load(TESTS / "validation" / "intervals.py")
    if all(file.exists() for file in script.FILES):
        yield script.PAGE, block(run.text(script.PAGE), *script.SHIPPED, script.shipped_markdown(script.found()))
    else:
        print("  needs measured cases that are not part of the repository; left as it is")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of what is rewritten.

    Args:
        takes: processor time on one core, about.
        files: yields each file with its new text.
        command: of a long part, in place of `files`; it writes its pages itself.
    """

    takes: str
    files: Callable[[Run], Files] | None = None
    command: tuple[str, ...] = ()
    about: str = ""

    @property
    def help(self) -> str:
        """What it writes."""
        return self.about or ((self.files and self.files.__doc__) or "").partition("\n")[0]


PARTS = {
    "packages": Part(files=packages, takes="1 s"),
    "lab": Part(files=lab, takes="1 s"),
    "lecture": Part(files=lecture, takes="5 s"),
    "tables": Part(files=tables, takes="1 min"),
    "outputs": Part(files=outputs, takes="40 s"),
    "numbers": Part(files=numbers, takes="2 min"),
    "notebooks": Part(files=notebooks, takes="1 min"),
    "figures": Part(files=figures, takes="3 min"),
}
_SCORES = ("serving", "serving_disaggregated", "static_batch", "max_throughput", "training")
LONG = {
    "intervals": Part(files=intervals, takes="5 min"),
    "scoreboard": Part(
        about="Score the measured cases, and store the scoreboard and its tables.",
        takes="5 min",
        command=(
            "-m", "rackline", "validate", *(f"../shared/measured/{name}.jsonl" for name in _SCORES),
            "--write-stored", "tests/validation/scoreboard.json", "--write-docs", "docs/accuracy",
        ),
    ),
    "speed": Part(
        about="Measure the commands of docs/speed.md.", takes="5 min", command=("bench/speed.py", "--write")
    ),
    "how-tos": Part(
        about="Follow the how-tos in a clean clone, and note what each takes.",
        takes="10 min",
        command=("bench/how_tos.py", "--write"),
    ),
    "release": Part(
        about="Build a release, install it with each extra, and write the tables of docs/release.md.",
        takes="20 min",
        command=("bench/release.py", "--write"),
    ),
    "moving-picture": Part(
        about="Draw README's moving picture in Chromium.", takes="1 min", command=("bench/moving_picture.py",)
    ),
}  # fmt: skip


def block(page: str, begin: str, end: str, text: str) -> str:
    """Return a page with another text between two marks.

    Raises:
        ValueError: a page that does not have the marks once each.
    """
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"a page needs the marks {begin} and {end} once each")
    head, rest = page.split(begin)
    return f"{head}{begin}\n{text}\n{end}{rest.split(end)[1]}"


def load(file: Path) -> ModuleType:
    """Load a script of bench/, or a module of the tests that computes a table of the docs."""
    name = f"refreshed_{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be loaded")
    script = importlib.util.module_from_spec(spec)
    sys.modules[name] = script  # dataclasses look their module up
    before = list(sys.path)
    sys.path[:0] = [str(BENCH), str(TESTS), str(file.parent)]  # scripts import their neighbours
    try:
        spec.loader.exec_module(script)
    finally:
        sys.path[:] = before
    return script


def refresh(wanted: Sequence[str], folder: Path, *, check: bool = False) -> tuple[list[Path], list[str]]:
    """Rewrite parts of the docs, with a line per part on standard output.

    Args:
        wanted: names such as "figures" or "figures/roofline".
        folder: where files are written, with the layout of the repository.
        check: compare only.

    Returns:
        The files that changed, or are stale, and what a person has to mend.
    """
    changed: list[Path] = []
    faults: list[str] = []
    for word in wanted:
        name, _, only = word.partition("/")
        part = (PARTS | LONG)[name]
        start = time.process_time()
        if part.files is None:
            print(f"{name}: {' '.join(part.command)}", flush=True)
            if not check:
                subprocess.run([sys.executable, *part.command], cwd=ROOT, check=True)
            continue
        run, count, before = Run(folder=folder, name=only), 0, len(changed)
        for path, text in part.files(run):
            count += 1
            target = folder / path.relative_to(ROOT)
            stored = target.read_text(encoding="utf-8") if target.is_file() else ""
            if _plain(stored) != _plain(text):
                changed.append(path)
                if not check:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(text, encoding="utf-8")
        if only and not count:
            raise SystemExit(f"{name} has nothing with the name {only}")
        faults += run.faults
        state = "stale" if check else "changed"
        took = time.process_time() - start
        print(f"{name}: {len(changed) - before} of {count} files {state}, {took:.0f} s", flush=True)
    return changed, faults


def _plain(text: str) -> str:
    return _COUNTED.sub(r"\1", text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite all parts, or those named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", metavar="PART[/NAME]", help="such as figures/roofline; repeatable")
    parser.add_argument("--check", action="store_true", help="say what is stale, and write nothing")
    parser.add_argument("--list", action="store_true", help="say which parts there are")
    given = parser.parse_args(arguments)
    if given.list:
        for name, part in (PARTS | LONG).items():
            print(f"{name:15} {part.takes:>6}  {part.help}{' Only if it is named.' if name in LONG else ''}")
        return 0
    wanted: list[str] = given.only or list(PARTS)
    if unknown := [word for word in wanted if word.partition("/")[0] not in PARTS | LONG]:
        parser.error(f"unknown part {unknown[0]}; the parts are {', '.join(PARTS | LONG)}")
    os.environ["RACKLINE_CATALOGUE"] = os.devnull + "/catalogue"  # the docs show what ships
    changed, faults = refresh(wanted, ROOT, check=given.check)
    for path in changed:
        print(f"{'stale' if given.check else 'changed'}: {path.relative_to(ROOT)}")
    for fault in faults:
        print(f"mend by hand: {fault}", file=sys.stderr)
    return 1 if faults or (given.check and changed) else 0


if __name__ == "__main__":
    sys.exit(main())
