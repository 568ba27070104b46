"""Random requests, made by schemathesis from the API's own description: no failure of the server, no hang.

    uv run python bench/web_fuzz.py [--cases 5000] [--seed 1]

Half of the cases follow the description, half break it. Checked of each: a status below 500 (or a 503 that says what
a request may not take), an answer within the limit, a media type and a body as described. Prints one JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from typing import Any

import httpx
from web_started import started

_HANGS_AFTER_S = 900.0  # beyond the server's own limit, also on a busy machine
# questions whose random answers take minutes are asked less often
_HEAVY = ("plan", "simulate", "train", "price", "compare", "validate", "calibrate", "ask")


def fuzz(address: str, cases: int, seed: int) -> dict[str, Any]:
    """Ask random questions.

    Args:
        address: of the server.
        cases: to ask at least, those that repeat included [count].
        seed: of the random cases.
    """
    import hypothesis
    import schemathesis
    from hypothesis import HealthCheck, Phase
    from schemathesis import GenerationMode
    from schemathesis.checks import CHECKS

    schema = schemathesis.openapi.from_url(f"{address}api/v1/openapi.json", wait_for_schema=600)
    seen: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    slowest = 0.0
    checks = [CHECKS.get_one(name) for name in ("content_type_conformance", "response_schema_conformance")]
    operations = [one.ok() for one in schema.get_all_operations()]
    each = max(math.ceil(cases / (2 * len(operations))), 1)
    client = httpx.Client(timeout=_HANGS_AFTER_S)

    def ask(case: Any) -> None:
        nonlocal slowest
        start = time.monotonic()
        label = f"{case.method} {case.path}"
        try:
            found = case.call(timeout=_HANGS_AFTER_S)
        except Exception as error:
            failures.append({"case": label, "error": f"{type(error).__name__}: {error}"[:500]})
            return
        slowest = max(slowest, time.monotonic() - start)
        seen[str(found.status_code)] += 1
        if found.status_code >= 500 and found.status_code != 503:
            failures.append({"case": label, "status": found.status_code, "curl": case.as_curl_command()[:2000]})
            return
        for check in checks:
            try:
                case.validate_response(found, checks=[check])
            except (Exception, BaseExceptionGroup) as error:  # a group of failures is no `Exception`
                failures.append({"case": label, "check": check.__name__, "error": str(error)[:1500]})

    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            made = operation.as_strategy(generation_mode=mode)
            run = hypothesis.given(case=made)(lambda case: ask(case))
            few = hypothesis.settings(
                max_examples=each,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            try:
                hypothesis.seed(seed)(few(run))()
            except hypothesis.errors.Unsatisfiable:
                seen["none"] += 1
    alive = client.get(f"{address}health").status_code
    return {
        "cases": sum(seen.values()),
        "statuses": dict(sorted(seen.items())),
        "slowest_s": round(slowest, 2),
        "alive": alive == 200,
        "failures": failures[:40],
        "num_failures": len(failures),
    }


def main() -> int:
    """Start a server, ask it, stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with started(2) as (address, _):
        found = fuzz(address, given.cases, given.seed)
    print(json.dumps(found, indent=2))
    return 1 if found["num_failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
