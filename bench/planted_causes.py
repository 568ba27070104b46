"""How often `diagnose` finds planted causes: servers with numbers drawn from the calibration's errors, faults, noise.

uv run --group dev python bench/planted_causes.py --runs 100
uv run --group dev python bench/planted_causes.py --runs 60 --causes 2
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from planted import planted
from rackline.validation.diagnosis import explained


def main() -> int:
    """Plant, diagnose and count."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--causes", type=int, default=1)
    given = parser.parse_args()
    counts, missed = Counter[str](), Counter[tuple[tuple[str, ...], str]]()
    for seed in range(given.runs):
        run = planted(np.random.default_rng(seed + 1000 * given.causes), given.causes)
        found = explained(str(seed), run.run, run.seen)
        first, second = (one.cause.key for one in found.suspects[:2])
        counts["first"] += first in run.planted
        counts["first two"] += bool({first, second} & set(run.planted))
        counts["all"] += set(run.planted) <= {first, second}
        if first not in run.planted:
            missed[run.planted, first] += 1
        print(seed, *run.planted, f"{run.slower:.2f} times:", first, second, flush=True)
    print({name: f"{count / given.runs:.0%}" for name, count in counts.items()})
    for (true, said), count in missed.most_common():
        print(f"{count} x {' and '.join(true)} called {said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
