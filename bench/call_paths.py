"""List each call that goes up between layers while a question is answered.

    uv run python bench/call_paths.py "plan llama-3.1-8b --on dgx-h100 --chips 2 --layout tp=1 --input 1k --output 100"

The layers are those of the import contract. A call goes up when a function of a lower layer calls one of a higher
layer: a callback, such as one that tells of progress, or a method of an object that was handed down. Modules that
every layer uses (the lowest line of the contract) are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from packages import SRC, levels  # a sibling in this folder


class Calls:
    """Counts the calls that go up between layers while a command runs."""

    def __init__(self) -> None:
        # the lowest line of the contract has height 0
        self.heights = {name: height for height, line in enumerate(reversed(levels())) for name in line}
        self.up: Counter[tuple[str, str]] = Counter()
        self._places: dict[str, tuple[str, str] | None] = {}

    def place(self, frame: FrameType | None) -> tuple[str, str] | None:
        """Return the package and the function of a frame, or None outside of the package and in what all layers use."""
        if frame is None:
            return None
        file = frame.f_code.co_filename
        if file not in self._places:
            path = Path(file)
            module = path.relative_to(SRC).with_suffix("").as_posix() if SRC in path.parents else ""
            package = module.partition("/")[0]
            self._places[file] = (package, module) if self.heights.get(package, 0) > 0 else None
        found = self._places[file]
        return None if found is None else (found[0], f"{found[1]}.{frame.f_code.co_qualname}")

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Note one event of the profiler."""
        if event != "call":
            return
        callee = self.place(frame)
        if callee is None or "<module>" in callee[1]:
            return
        above, caller = frame.f_back, None
        while above is not None and caller is None:  # through libraries and through what all layers use
            caller, above = self.place(above), above.f_back
        if caller is not None and self.heights[callee[0]] > self.heights[caller[0]]:
            self.up[caller[1], callee[1]] += 1


def main() -> int:
    """Ask the question and print the calls that go up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", help="a command line without `rackline`")
    options = parser.parse_args()
    from rackline.cli.main import run

    words = shlex.split(options.command)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run(words)  # what is loaded at first use is loaded now
    calls = Calls()
    sys.setprofile(calls)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            status = run(words)
    finally:
        sys.setprofile(None)
    for (caller, callee), count in calls.up.most_common():
        print(f"{count:8,} {caller} -> {callee}")
    print(f"{len(calls.up)} calls go up (status {status})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
