"""Change random numbers of the shipped calibrations and stacks by 1 % and run the tests: none should fail.

    uv run --group dev python bench/one_percent.py --seed 1                    # ten numbers at once, the whole suite
    uv run --group dev python bench/one_percent.py --seed 1 --apart tests/unit # one after the other, some tests

A better number must not break tests, except one that refits this very number from its data. Runs in a copy of the
committed tree under build/one-percent. With all numbers changed at once a failure is attributed by running its test
with each number alone.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from committed_tree import ROOT, copy_committed_tree  # a sibling in this folder

WORK = ROOT / "build" / "one-percent"
TREE = WORK / "tree"
DATA = TREE / "src" / "rackline" / "catalog" / "data"
FOLDERS = ("calibrations", "stacks", "training_stacks")
NUMBER = re.compile(r"\b(\w+) = (-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?=[,}\s]|$)")
NOT_A_PARAMETER = re.compile(r"error|rows|rank$|version|tokens$|_seqs|layers|from_ep|size$|since")  # counts, statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One number of a file, and the same with 1 % more.

    Args:
        file: path inside of the tree.
        start, end: where the number stands in the file [characters].
    """

    file: str
    key: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def text(self) -> str:
        """Return "calibrations/vllm.toml:91 eta_memory 0.9201 -> 0.9293"."""
        place = "/".join(Path(self.file).parts[-2:])
        return f"{place}:{self.line} {self.key} {self.before} -> {self.after}"


def main() -> int:
    """Draw, change, test, and say which tests failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--apart", action="store_true", help="one number after the other")
    parser.add_argument("tests", nargs="*", help="tests to run; all by default")
    options = parser.parse_args()
    copy_committed_tree(TREE)
    changes = drawn(options.seed, options.count)
    print("\n".join(change.text() for change in changes), flush=True)
    failed: dict[str, list[str]] = {}
    if options.apart:
        for change in changes:
            for test in failures([change], options.tests):
                failed.setdefault(test, []).append(change.text())
    else:
        for test in failures(changes, options.tests):
            failed[test] = [change.text() for change in changes if failures([change], [test])]
    for test, causes in failed.items():
        print(f"FAILED {test}: {'; '.join(causes) or 'only together, or also without a change'}")
    print(f"{len(changes)} numbers changed by 1 %, {len(failed)} tests failed")
    return int(bool(failed))


def drawn(seed: int, count: int) -> list[Change]:
    """Return that many changes, each number of the shipped files being as likely as any other."""
    numbers: list[Change] = []
    for file in sorted(path for folder in FOLDERS for path in (DATA / folder).glob("*.toml")):
        text = file.read_text(encoding="utf-8")
        for match in NUMBER.finditer(text):
            key, before = match.groups()
            if NOT_A_PARAMETER.search(key) or float(before) in (0.0, 1.0):
                continue
            more = float(f"{1.01 * float(before):.5g}")
            is_share = key.startswith("eta") or key in ("exposed", "cached")
            after = f"{0.99 * float(before):.5g}" if is_share and more > 1.0 else f"{more:.5g}"
            line = text.count("\n", 0, match.start()) + 1
            numbers.append(
                Change(
                    file=file.relative_to(TREE).as_posix(), key=key, line=line, start=match.start(2), end=match.end(2),
                    before=before, after=after,
                )
            )  # fmt: skip
    return sorted(random.Random(seed).sample(numbers, count), key=lambda change: (change.file, change.start))


def failures(changes: list[Change], tests: list[str]) -> list[str]:
    """Return the tests that fail with some changes."""
    files = {name: (TREE / name).read_text(encoding="utf-8") for name in {change.file for change in changes}}
    try:
        for name, original in files.items():
            text = original
            for change in sorted(
                (change for change in changes if change.file == name), key=lambda change: -change.start
            ):
                text = text[: change.start] + change.after + text[change.end :]
            (TREE / name).write_text(text, encoding="utf-8")
        environment = os.environ | {"PYTHONPATH": str(TREE / "src")}
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--tb=no", *tests],
            cwd=TREE, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        for name, original in files.items():
            (TREE / name).write_text(original, encoding="utf-8")
    if ran.returncode not in (0, 1):  # pytest's own statuses: passed, or some tests failed
        sys.exit(f"the tests did not run: {ran.stdout[-500:]}{ran.stderr[-500:]}")
    print("\n".join(ran.stdout.splitlines()[-3:]), flush=True)
    return [line.split(" ")[1] for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]


if __name__ == "__main__":
    sys.exit(main())
