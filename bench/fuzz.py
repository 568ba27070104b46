"""Wrong inputs by the thousand: each command answers or refuses in one short line, whatever it is given.

    uv run python bench/fuzz.py [--inputs 10000] [--seed 1] [--kind traces] [--write]

Prints what ends with an exception, a warning, a long line or too late, or answers with numbers that cannot be, with the
command that does it again; exits 1 when there is any. Times are of this process; requests are answered by another.
Inputs of one seed are always the same; memory is bounded, so that what grows without bound is found.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fuzz"))

from harness import KINDS, close, fuzz

from rackline.files import rounded

_MEMORY = 8 * 2**30  # address space [bytes]
_SUMMARY = Path(__file__).resolve().parents[1] / "docs" / "measured" / "fuzz.json"


def main() -> int:
    """Run them, a kind after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000, help="in all nine kinds together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=list(KINDS), nargs="+", default=list(KINDS), help="some kinds alone")
    parser.add_argument("--write", action="store_true", help="store the summary in docs/measured/fuzz.json")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.RLIM_INFINITY))
    each = -(-given.inputs // len(KINDS))
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    summary: dict[str, dict[str, float]] = {}
    for kind in given.kind:
        start = time.process_time()
        found = fuzz(kind, each, given.seed, folder)
        for words, wrong in found.bad:
            print(f"{kind}: {str(words)[:600]}\n{wrong}\n")
        summary[kind] = {
            "inputs": found.inputs,
            "answered": found.answered,
            "end_badly": len(found.bad),
            "slowest_s": found.slowest_s,
            "processor_s": time.process_time() - start,
        }
        print(kind, rounded(summary[kind]), flush=True)
    close()
    bad = sum(one["end_badly"] for one in summary.values())
    if given.write:
        date = datetime.now(UTC).date().isoformat()
        stored = json.loads(_SUMMARY.read_text(encoding="utf-8")) if _SUMMARY.exists() else {}
        stored |= {kind: {"date": date, "seed": given.seed, **one} for kind, one in rounded(summary).items()}
        _SUMMARY.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    if bad:
        print(f"files are kept in {folder}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
