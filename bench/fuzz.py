"""Wrong inputs by the thousand: each command answers or refuses in one short line, whatever it is given.

    uv run python bench/fuzz.py [--inputs 10000] [--seed 1] [--kind traces]

Prints what ends with an exception, a warning, a long line or too late, with the command that does it again; exits 1
when there is any. Inputs of one seed are always the same; memory is bounded, so that what grows without bound is found.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fuzz"))

from harness import KINDS, fuzz

_MEMORY = 8 * 2**30  # address space [bytes]


def main() -> int:
    """Run them, a kind after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000, help="in all kinds together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=list(KINDS), help="one kind alone")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.RLIM_INFINITY))
    kinds = [given.kind] if given.kind else list(KINDS)
    bad = 0
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    for kind in kinds:
        start = time.perf_counter()
        found = fuzz(kind, given.inputs // len(kinds), given.seed, folder)
        for words, wrong in found:
            print(f"{kind}: {str(words)[:600]}\n{wrong}\n")
        bad += len(found)
        seconds = time.perf_counter() - start
        print(f"{kind}: {given.inputs // len(kinds):,} inputs, {len(found)} end badly, {seconds:.0f} s", flush=True)
    if bad:
        print(f"files are kept in {folder}")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
