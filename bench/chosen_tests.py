"""Plugin of pytest for `mutants.py`: notes which test runs which line, or runs chosen tests in the order given.

`MUTANTS_COVERAGE` names the file for coverage data (a context a test), seconds of each test go beside it as .json;
`MUTANTS_TESTS` names a JSON file with a list of test ids: only these run, in this order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

_DATA = os.environ.get("MUTANTS_COVERAGE", "")
_CHOSEN = os.environ.get("MUTANTS_TESTS", "")
_seconds: dict[str, float] = {}

if _DATA:
    import coverage

    _coverage = coverage.Coverage(data_file=_DATA, source=json.loads(os.environ["MUTANTS_SOURCE"]), config_file=False)
    _coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
        """Lines that run from here on belong to this test."""
        _coverage.switch_context(item.nodeid)
        result = yield
        _coverage.switch_context("")
        return result

    def pytest_runtest_logreport(report: pytest.TestReport) -> None:
        """Seconds of set-up, call and tear-down; a test that fails or is skipped finds no mutant."""
        _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + (report.duration if report.passed else 1e9)

    def pytest_sessionfinish() -> None:
        """Write both files."""
        _coverage.stop()
        _coverage.save()
        passed = {test: seconds for test, seconds in _seconds.items() if seconds < 1e9}
        Path(_DATA).with_suffix(".json").write_text(json.dumps(passed), encoding="utf-8")


if _CHOSEN:

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the tests that were chosen, in their order."""
        place = {test: at for at, test in enumerate(json.loads(Path(_CHOSEN).read_text(encoding="utf-8")))}
        dropped = [item for item in items if item.nodeid not in place]
        items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])
        config.hook.pytest_deselected(items=dropped)
