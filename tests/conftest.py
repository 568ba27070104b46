"""Settings shared by all tests."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import shutil
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from rackline.processes import usable_cores

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# No test leaves this machine: the Hub is a closed port of loopback, unless a test serves one.
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
for _name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
    os.environ.pop(_name, None)

os.environ["RACKLINE_CATALOGUE"] = os.devnull + "/catalogue"  # no test reads or writes the user's own

os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"  # else Ray builds an environment for each worker under `uv run`

# The lab exchanges between devices of the host; JAX reads this once, when it is first imported. Most of the lab's tests
# compile many small programs and run each once, so the compiler need not optimise them.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    " --xla_llvm_disable_expensive_passes=true",
)

# Whether tests pass depends on the code alone: not on how busy the machine is, nor on which examples are drawn.
# `--hypothesis-profile=search` draws others each time.
_USUAL: dict[str, Any] = {
    "deadline": None, "max_examples": 60, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow],
}  # fmt: skip
settings.register_profile("search", **_USUAL)
settings.register_profile("rackline", **_USUAL, derandomize=True)
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


@pytest.fixture(scope="module")
def answers_once() -> Iterator[Counter[str]]:
    """Commands of a file compute each answer once and show it as often as they are asked: as JSON, text, figure.

    For files whose tests change nothing that answers depend on; files beside the working folder may differ.

    Yields:
        How often each question was asked.
    """
    from rackline.cli import command

    solved, asked, usual = dict[str, Any](), Counter[str](), command.answer_of

    def once(question: Any, *more: Any) -> Any:
        key = json.dumps([str(Path.cwd()), question.ask, question.to_data()], sort_keys=True, default=str)
        asked[key] += 1
        if key not in solved:
            solved[key] = usual(question, *more)
        return solved[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "answer_of", once)
        yield asked


class _Contents(pickle.Pickler):
    """Writes classes, also those that are made when a module is loaded, by their names."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj is not str:
            return str, (f"{obj.__module__}.{obj.__qualname__}",)
        return NotImplemented


def _contents(value: Any) -> bytes:
    """All that a value holds, alike for equal values."""
    written = io.BytesIO()
    pickler = _Contents(written)
    pickler.fast = True  # writes what comes twice twice: equal values need not share their parts alike
    pickler.dump(value)
    return written.getvalue()


@pytest.fixture(scope="module")
def searched_once() -> Iterator[Counter[str]]:
    """The search of a plan runs once for the same inputs, whichever command of a file gives them.

    For files that compare commands: what these differ in is what they give to the search and what they show of it. The
    key is everything that the search reads, so a command that gives it anything else searches by itself.

    Yields:
        How often each search was asked for, by its method.
    """
    from rackline.search import engine_choice
    from rackline.search.inputs import PlanInputs

    found, asked = dict[bytes, tuple[Any, list[Any]]](), Counter[str]()

    def once(name: str) -> Any:
        usual = getattr(PlanInputs, name)

        def searched(inputs: Any, tell_estimate: Any = None, **how: Any) -> Any:
            kept = {key: value for key, value in how.items() if key != "found"}  # follows from the same inputs
            read = (name, inputs.system, inputs.demand, inputs.space, inputs.prefill, kept)
            key, told = _contents(read), list[Any]()
            asked[name] += 1
            if key not in found:
                asked[f"{name} searched"] += 1
                tells = {} if name == "contenders" else {"tell_estimate": told.append}
                found[key] = usual(inputs, **how, **tells), told
            for plan in found[key][1] if tell_estimate is not None else ():
                tell_estimate(plan)
            return found[key][0]

        return searched

    least_energies, least_energy = dict[bytes, Any](), engine_choice.least_energy

    def least_energy_once(*read: Any, **further: Any) -> Any:
        key = _contents((read, further))
        asked["least_energy"] += 1
        if key not in least_energies:
            asked["least_energy searched"] += 1
            least_energies[key] = least_energy(*read, **further)
        return least_energies[key]

    with pytest.MonkeyPatch.context() as patch:
        for name in ("contenders", "plan"):
            patch.setattr(PlanInputs, name, once(name))
        patch.setattr(engine_choice, "least_energy", least_energy_once)
        yield asked


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--slowest-files`."""
    parser.addoption("--slowest-files", type=int, default=20, help="how many test files the table of seconds lists")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files and those with slow tests first, so that no worker ends long after the others."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    longest = {config.rootpath / f"tests/{name}.py" for name in _LONGEST}
    items.sort(key=lambda item: (item.path not in longest, item.path not in slow))


# Files that take a worker a minute or more, and begin before all others.
_LONGEST = (
    "validation/test_op_bars",
    "unit/test_diagnosis",
    "e2e/test_agreement",
    "web/test_page_decision",
    "docs/test_site",
)


# Files whose tests share nothing that takes long: each test goes to the worker that is free.
_SPREAD = frozenset(
    f"tests/{name}.py"
    for name in (
        "docs/test_commands",
        "docs/test_examples",
        "docs/test_notebooks",
        "docs/test_stored_figures",
        "docs/test_tutorials",
        "e2e/test_acceptance",
        "e2e/test_doors",
        "golden/test_open_loop",
        "lab/test_experiments_run",
        "lab/test_mechanisms",
        "unit/test_diagnosis",
    )
)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Files stay together, whose tests share fixtures and answers, but for those that share none."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return nodeid if file in _SPREAD else file

    return Scheduling(config, log)  # type: ignore[arg-type]


_MOST_WORKERS = 4  # each collects all tests and may hold 2 GB of the lab's arrays


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """The whole suite runs on the cores that there are; named files and tests run in this process."""
    whole = config.args == config.getini("testpaths")
    return min(usable_cores(), _MOST_WORKERS) if whole else 0


_PROCESSOR_S = "processor_s"
_start_s = pytest.StashKey[float]()
_seconds_by_file = Counter[str]()


def _processor_s() -> float:
    """Return the processor seconds of this process and of its finished children."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Attach the processor seconds of each phase to its report. A worker sends them to the process that prints."""
    report = yield
    now = _processor_s()
    report.user_properties.append((_PROCESSOR_S, now - item.stash[_start_s]))
    item.stash[_start_s] = now
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Start the clock of a test."""
    item.stash[_start_s] = _processor_s()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add the processor seconds of a phase to its file. The properties of a test grow with each of its phases."""
    seconds = [value for name, value in report.user_properties if name == _PROCESSOR_S]
    _seconds_by_file[report.nodeid.partition("::")[0]] += seconds[-1] if seconds else 0.0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests were skipped and why, and which files take the most processor time."""
    terminalreporter.section("processor seconds by test file")
    for file, seconds in _seconds_by_file.most_common(terminalreporter.config.getoption("--slowest-files")):
        terminalreporter.write_line(f"{seconds:7.1f} {file}")
    terminalreporter.write_line(f"{sum(_seconds_by_file.values()):7.1f} in all {len(_seconds_by_file)} files")
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[-1]) for report in reports if isinstance(report.longrepr, tuple))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
