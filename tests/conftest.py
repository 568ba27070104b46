"""Settings shared by all tests."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from rackline.processes import usable_cores

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# No test leaves this machine: the Hub is a closed port of loopback, unless a test serves one.
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
for _name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
    os.environ.pop(_name, None)

os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"  # else Ray builds an environment for each worker under `uv run`

# The lab exchanges between devices of the host; JAX reads this once, when it is first imported.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

# A loaded 2-core machine breaks hypothesis's 200 ms deadline without any fault in the code.
settings.register_profile("rackline", deadline=None, max_examples=60, print_blob=True)
settings.load_profile("rackline")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's chromium, for one file: while Playwright runs, nothing else of the thread can start an event loop."""
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no chromium: .ci/run installs it")
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


_MOST_WORKERS = 4  # each collects all tests and may hold 2 GB of the lab's arrays


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """The whole suite runs on the cores that there are; named files and tests run in this process."""
    whole = config.args == config.getini("testpaths")
    return min(usable_cores(), _MOST_WORKERS) if whole else 0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many tests were skipped, and why: a clone without the measured cases does not test as much."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[-1]) for report in reports if isinstance(report.longrepr, tuple))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
