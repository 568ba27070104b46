"""A copy of the package whose shipped numbers never change, for the answers that are stored as examples.

`numbers.tar.xz` holds the catalogue, the bands, the spreads and the practice of training as they were on the day that
they were frozen. `package_with_frozen_numbers` lays them out beside today's modules. Better numbers in the package
therefore move no stored answer. A change of a file's format needs a change of the frozen file too:

    uv run python tests/golden/frozen.py unpack FOLDER   # edit the files there
    uv run python tests/golden/frozen.py pack FOLDER
"""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "src" / "rackline"
ARCHIVE = HERE / "numbers.tar.xz"
NUMBERS = (
    "catalog/data",
    "bands/bands.toml",
    "bands/further_bands.toml",
    "bands/spread.toml",
    "training/practice.toml",
)


def package_with_frozen_numbers(folder: Path) -> None:
    """Write `folder/rackline`: links to the modules of today beside the frozen numbers.

    Folders without numbers are linked whole, so that their compiled byte code is shared.
    """
    target = folder / "rackline"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(target, filter="data")
    _link_missing(PACKAGE, target)


def _link_missing(source: Path, target: Path) -> None:
    for path in source.iterdir():
        beside = target / path.name
        if not beside.exists():
            beside.symlink_to(path)
        elif path.is_dir() and path.relative_to(PACKAGE).as_posix() not in NUMBERS:
            _link_missing(path, beside)


def pack(folder: Path) -> None:
    """Freeze the numbers of a folder that is laid out like the package."""

    def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
        return entry

    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for name in NUMBERS:
            archive.add(folder / name, name, filter=without_owner)


def main(words: list[str]) -> int:
    """Pack or unpack."""
    match words:
        case ["pack", folder]:
            pack(Path(folder))
        case ["unpack", folder]:
            with tarfile.open(ARCHIVE) as archive:
                archive.extractall(folder, filter="data")
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
