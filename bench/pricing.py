"""How fast prices are read and made, against the bars.

    uv run python bench/pricing.py [--json]

Prints a table on standard error and one JSON object on standard output; exits 1 when a bar is missed. All price sheets
of the catalogue are read, files included; a price sheet is made of one deployment; `rackline infer-prices --all` is a
fresh process. Best of three.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict

from engine import Bar

REPEATS = 3


def best(work: Callable[[], object]) -> float:
    """Shortest of the repeats [s]."""
    times: list[float] = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def read_all_sheets() -> int:
    from rackline.pricing import all_sheets, read_all

    return len(read_all(all_sheets()))


def make_a_sheet() -> None:
    from rackline.arch import model
    from rackline.hardware import cluster
    from rackline.parallel import parse_layout, precision
    from rackline.passes import calibration
    from rackline.pricing import OneDeployment, Rent, TokenCosts, offer_prices
    from rackline.system import System

    found, on = model("deepseek-v3"), cluster("dgx-h200")
    system = System.of(
        found, on, calibration=calibration("auto", on.chip), precisions=[precision("fp8", found, on.chip)]
    )
    costs = TokenCosts.of(system, parse_layout("attention_dp=8,ep=8", found))
    offer_prices(OneDeployment(costs=costs), Rent(usd_per_chip_hour=on.usd_per_chip_hour or 1.0))


def command() -> None:
    arguments = [sys.executable, "-m", "rackline", "infer-prices", "--all", "--json"]
    subprocess.run(arguments, check=True, capture_output=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure pricing against its bars.")
    parser.add_argument("--json", action="store_true", help="no table, JSON only")
    given = parser.parse_args()
    bars = [
        Bar(name="all price sheets read", value=best(read_all_sheets), unit="s", below=2.0),
        Bar(name="price sheets", value=read_all_sheets(), unit="sheets", at_least=12),
        Bar(name="a price sheet made", value=best(make_a_sheet), unit="s", below=2.0),
        Bar(name="infer-prices --all, wall with start-up", value=best(command), unit="s", below=2.0),
    ]
    if not given.json:
        print("\n".join(bar.text() for bar in bars), file=sys.stderr)
    cleared = all(bar.cleared for bar in bars)
    data = {"bars": [{**asdict(bar), "cleared": bar.cleared} for bar in bars], "cleared": cleared}
    print(json.dumps(data, indent=None if given.json else 2))
    return 0 if cleared else 1


if __name__ == "__main__":
    sys.exit(main())
