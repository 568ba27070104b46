"""Put newly fitted classes into the shipped calibrations, the others as they are.

    rackline calibrate TABLES... -o fitted/
    python bench/ship_calibration.py fitted/ moe --keep ../shared/measured/ops/moe.csv \
        --gain ../shared/measured/kernels/moe.csv

Of the named classes of kernels (or collectives) each shipped file gets the numbers of the file of the same name, those
of its older versions and the reasons of rejected fits. Numbers of generations that the tables do not hold stay. With
`--keep` an entry stays as it is where the new one describes the operations of these tables worse, or where there is
none, and with `--gain` where it does not describe those of these tables better, or shapes left out badly: a wider mix
of shapes must not cost what was right, and numbers do not change for nothing. With `--only-new` no entry is replaced.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rackline.catalog import names
from rackline.files import write_text
from rackline.fitting.fit import Group, groups_of, seconds
from rackline.fitting.tables import read_tables
from rackline.hardware import chip

SHIPPED = Path(__file__).parents[1] / "src/rackline/catalog/data/calibrations"
SECTIONS = {
    "operation": "",
    "collective": "",
    "older_operation": "# Numbers of older versions that take another time; see rackline.fitting.older.\n",
    "older_collective": "# All-reduces of older versions that take another time; see rackline.fitting.older.\n",
}
WORSE, BETTER = 1.01, 0.95
"""New over old mean |log error| from which a new entry is worse, and up to which it is better."""
WORST = 0.15
"""Median error on shapes or families left out beyond which an entry is not shipped."""
QUANTISED = ("fp8", "fp8_block", "fp4")
_HEAD = "# Rejected fits, which fall back:\n"
Entry = Mapping[str, Any]


def inline(entry: Entry) -> str:
    """An entry on a line of its own."""
    cells = (f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value!r}" for key, value in entry.items())
    return "  {" + ", ".join(cells) + "},\n"


def place(entry: Entry) -> tuple[str, str, str]:
    """What an entry is for."""
    return entry["chip"], entry["class"], str(entry.get("dtype", entry.get("group_size")))


def error(entry: Entry, groups: Sequence[Group]) -> float:
    """Mean |log error| of an entry's numbers over groups of measured operations, each with the same weight."""
    values = {name: value for name, value in entry.items() if isinstance(value, float)}
    return float(np.mean([np.mean(np.abs(np.log(seconds(values, g.work) / g.measured_s))) for g in groups]))


def held(groups: Sequence[Group], stack: str, entry: Entry) -> list[Group]:
    """The groups that an entry describes: of its chip and stack, or in `generic` of its generation or of all."""
    of = [g for g in groups if (g.work.op_class, g.work.dtype) == place(entry)[1:]]
    if stack == "any":
        return [g for g in of if entry["chip"] in ("*", g.generation)]
    return [g for g in of if (g.chip, g.stack) == (entry["chip"], stack)]


def is_poor(entry: Entry) -> bool:
    """Whether what was left out of its fit is described badly."""
    return max(entry.get(name) or 0.0 for name in ("median_error", "family_median_error")) > WORST


def stays(stack: str, before: Entry, after: Entry | None, keep: Sequence[Group], gain: Sequence[Group]) -> bool:
    """Whether an entry is not replaced."""
    if gain and after is not None and is_poor(after):
        return True
    for groups, most in ((held(keep, stack, before), WORSE), (held(gain, stack, before), BETTER)):
        if groups and (after is None or error(after, groups) > most * error(before, groups)):
            return True
    return False


def with_classes(
    shipped: str,
    fitted: str,
    classes: Collection[str],
    keep: Sequence[Group],
    gain: Sequence[Group],
    only_new: bool = False,
) -> tuple[str, list[str]]:
    """Text of a shipped file with the numbers of some classes of a fitted one, and the entries that stay."""
    new, old = tomllib.loads(fitted), tomllib.loads(shipped)
    fresh = {place(entry): entry for entry in new.get("operation", []) if entry["class"] in classes}
    stay = {
        place(entry)
        for entry in old.get("operation", [])
        if entry["class"] in classes and (only_new or stays(old["stack"], entry, fresh.get(place(entry)), keep, gain))
    }
    known = {place(entry) for entry in old.get("operation", [])}
    stay |= {of for of, entry in fresh.items() if of not in known and is_poor(entry)}
    launch = {entry["chip"]: entry for entry in old.get("operation", []) if place(entry)[1:] == ("gemm", "bf16")}
    for of, entry in fresh.items():  # quantised products have the launch of bf16
        if of[1] == "gemm" and of[2] in QUANTISED and (of[0], "gemm", "bf16") in stay:
            entry["overhead_s"] = launch[of[0]]["overhead_s"]
    for section, title in SECTIONS.items():
        own = [entry for entry in new.get(section, []) if entry["class"] in classes and place(entry) not in stay]
        found = re.search(rf"^{section} = \[\n(.*?)^\]\n", shipped, re.M | re.S)
        before = found.group(1).splitlines(keepends=True) if found else []
        entries = [tomllib.loads(f"one = [{line}]")["one"][0] for line in before]
        stated = {place(entry) for entry in own}
        gone = [
            index
            for index, entry in enumerate(entries)
            if entry["class"] in classes
            and place(entry) not in stay
            and (old["stack"] != "any" or place(entry) in stated)
        ]
        kept = [line for index, line in enumerate(before) if index not in set(gone)]
        at = min(gone, default=len(kept))
        lines = [*kept[:at], *(inline(entry) for entry in own), *kept[at:]]
        text = f"{section} = [\n{''.join(lines)}]\n" if lines else ""
        if found:
            shipped = shipped[: found.start()] + text + shipped[found.end() :]
        elif text:
            shipped = shipped.replace("\n[[sources]]", f"\n{title}{text}\n[[sources]]", 1)
    return _with_reasons(shipped, fitted, classes, stay), [" ".join(one) for one in sorted(stay)]


def _with_reasons(shipped: str, fitted: str, classes: Collection[str], stay: Collection[tuple[str, str, str]]) -> str:
    """The reasons of rejected fits, which are comments."""
    reason = re.compile(r"^#   (\S+) (\S+) (\S+): .*\n", re.M)
    own = [one.group() for one in reason.finditer(fitted) if one.group(2) in classes and one.groups() not in stay]
    rest = [one.group() for one in reason.finditer(shipped) if one.group(2) not in classes]
    bare = reason.sub("", shipped)
    if not own + rest or _HEAD not in bare:
        return bare
    return bare.replace(_HEAD, _HEAD + "".join(own + rest), 1)


def main() -> None:
    """Write the shipped files anew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="as `rackline calibrate -o` writes it")
    parser.add_argument("classes", nargs="+", help="classes of kernels or collectives")
    parser.add_argument("--into", type=Path, default=SHIPPED, help="calibrations to change")
    parser.add_argument("--keep", nargs="+", default=[], help="operations that no entry may describe worse than it did")
    parser.add_argument("--gain", nargs="+", default=[], help="operations that an entry must describe better")
    parser.add_argument("--only-new", action="store_true", help="replace no entry")
    given = parser.parse_args()
    chips = {name: chip(name) for name in names("chips")}
    keep, gain = (groups_of(read_tables(of, list(chips)), chips) if of else [] for of in (given.keep, given.gain))
    for path in sorted(given.folder.glob("*.toml")):
        target = given.into / path.name
        text, stay = with_classes(target.read_text(), path.read_text(), given.classes, keep, gain, given.only_new)
        write_text(target, text, what="calibration")
        print(f"{path.stem}: {len(stay)} entries stay", *stay, sep="\n  ")


if __name__ == "__main__":
    main()
