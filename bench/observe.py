"""The load generator's own timing error against a server that notes when it sent each event.

    uv run python bench/observe.py [--store] [RATE] [REQUESTS] [TOKENS]

By default 50 requests/s of 20 events, half a second apart: about 500 streams and 1,000 events/s. Three errors: how much
later than due a request was sent; how much later an event was seen than the server sent it (both clocks are one,
`time.perf_counter`, and the way over loopback counts as error); and what the generator says of itself. The bar: 10 ms
at the 99th percentile, in the time in which all streams are there. Then rates are raised until the generator says that
it binds. `--store` writes docs/measured/observe.json.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from rackline.lab.load_generator import Prompts, observe_load
from rackline.lab.stream import Bounds, target
from rackline.simulation import Requests, poisson
from rackline.validation.observed import TIMING_LIMIT_S

HERE = Path(__file__).resolve().parent
STORED = HERE.parent / "docs" / "measured" / "observe.json"


def milliseconds(values: Any) -> dict[str, float]:
    """Median, 99th percentile and maximum."""
    p50, p99, most = np.percentile(np.asarray(values) * 1e3, [50, 99, 100])
    return {"p50": round(float(p50), 3), "p99": round(float(p99), 3), "max": round(float(most), 3)}


def measured(rate: float, number: int, tokens: int) -> dict[str, Any]:
    """One load on a new server."""
    server = subprocess.Popen([sys.executable, str(HERE / "stream_server.py")], stdout=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        load = Requests(
            arrival_s=poisson(np.random.default_rng(0), number, rate),
            input_len=np.full(number, 64),
            output_len=np.full(number, tokens),
            name="bench",
        )
        prompts = Prompts(target=target(url, endpoint="completions"))
        found = observe_load(load, prompts, Bounds())
        sent = json.load(urllib.request.urlopen(f"{url}/sent"))
    finally:
        server.kill()
        server.wait()
    # the steady part: from the moment at which all streams are there to the last arrival
    full, last = tokens * 0.5, float(load.arrival_s[-1])
    seen: list[float] = []
    for index, one in enumerate(found.requests):
        moments = sent.get(",".join(map(str, prompts.prompt(load, index)[:4])), [])
        seen += [
            at + found.start - moment for at, moment in zip(one.token_s, moments, strict=False) if full <= at <= last
        ]
    late = [one.late_s for one in found.requests if one.sent_s is not None and one.sent_s >= full]
    limits = found.generator
    return {
        "requests_per_s": rate,
        "requests": number,
        "events_each": tokens,
        "finished": sum(one.outcome == "finished" for one in found.requests),
        "streams_at_once": limits.in_flight,
        "steady_events_per_s": round(len(seen) / (last - full), 1),
        "sent_late_ms": milliseconds(late),
        "seen_late_ms": milliseconds(seen),
        "own_lag_p99_ms": round(limits.lag_p99_s * 1e3, 3),
        "own_late_p99_ms": round(limits.late_p99_s * 1e3, 3),
        "core_share": round(limits.busy_share, 3),
        "binds": limits.binds,
    }


def main(arguments: list[str]) -> None:
    """Measure the bar, then higher rates."""
    store = "--store" in arguments
    numbers = [float(one) for one in arguments if one != "--store"] or [50.0]
    rate, number, tokens = (*numbers, 1500.0, 20.0)[:3] if len(numbers) == 1 else (*numbers, 20.0)[:3]
    bar = measured(rate, int(number), int(tokens))
    print(json.dumps(bar, indent=2), flush=True)
    p99 = max(bar["sent_late_ms"]["p99"], bar["seen_late_ms"]["p99"])
    print(f"timing error p99 {p99:.2f} ms, bar {TIMING_LIMIT_S * 1e3:.0f} ms: {'met' if p99 <= 10 else 'missed'}")
    beyond: list[dict[str, Any]] = []
    if store:
        for factor in (2, 4, 8):
            beyond.append(measured(rate * factor, int(rate * factor * 15), int(tokens)))
            print(json.dumps(beyond[-1]), flush=True)
            if beyond[-1]["binds"]:
                break
        STORED.write_text(
            json.dumps(
                {
                    "date": datetime.now(UTC).date().isoformat(),
                    "python": platform.python_version(),
                    "cores": os.cpu_count(),
                    "load_average": [round(one, 1) for one in os.getloadavg()],
                    "scheduling": os.environ.get("BENCH_SCHEDULING", "normal"),
                    "bar": bar,
                    "beyond": beyond,
                },
                indent=2,
            )
            + "\n"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
