"""Build a release and try it as a stranger would: `uv run python bench/release.py [--help]`.

Builds a wheel for each platform and the source distribution, lists all parts (CycloneDX, what is vendored included),
installs the wheel of this machine into an empty environment for each Python and each extra alone, runs the main command
of the extra there, and prints a table.
`--sdist` unpacks the source distribution, installs from its own lock file, and runs its fast tests against the wheel.
`--write` puts the tables into docs/release.md. A Python or a package that cannot be had is a row with the reason;
anything else that fails makes the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
import urllib.request
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "release.md"
VENDORED = ROOT / "src/rackline/web/static/vendor/versions.json"
EXTRAS = ("none", "plot", "web", "sweep", "lab", "ray")
PLATFORMS = ("linux-x86_64", "linux-aarch64", "darwin-x86_64", "darwin-arm64", "windows-amd64")
HERE = f"{platform.system()}-{platform.machine()}".lower()
FAST_TESTS = ("tests/unit", "tests/property", "tests/architecture")
COMMAND_LIMIT_S = 600
BUILD_LIMIT_S = 1800  # zig builds the C library of Windows first
TESTS_LIMIT_S = 3000

SERVING = ("llama-3.1-8b", "--on", "dgx-h100")
SPACE = """
[options]
model = "llama-3.1-8b"
on = "dgx-h100"
layout = "tp=1"
context = "4k"
batch = { log = [1, 256], num = 50 }

[objectives]
usd_per_mtok_output = "min"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One installation.

    Args:
        python: version of Python.
        extra: the one that was installed, or none.
        packages: installed, rackline included; None where it could not be installed.
        megabytes: of the environment, without Python and without compiled byte code.
        said: what the main command did, or why it was not run.
        failed: whether that is an error.
        skipped: whether the Python or a package cannot be had here.
    """

    python: str
    extra: str
    packages: int | None = None
    megabytes: float | None = None
    said: str = ""
    failed: bool = False
    skipped: bool = False


def command(
    words: Sequence[str | Path],
    *,
    cwd: Path = ROOT,
    limit_s: float = COMMAND_LIMIT_S,
    more: Mapping[str, str] | None = None,
) -> str:
    """Standard output of a command.

    Args:
        words: the program and its arguments.
        cwd: where it runs.
        limit_s: longest time [s].
        more: variables of its environment beside those of this process.

    Raises:
        RuntimeError: it failed; the message ends with the last lines that it wrote.
        subprocess.TimeoutExpired: it took longer, and was ended with all that it had started.
    """
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    environment |= more or {}
    environment.setdefault("RAY_raylet_start_wait_time_s", "400")  # on a busy machine Ray's own limit is too short
    process = subprocess.Popen(
        list(map(str, words)), cwd=cwd, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        said, complained = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # and all that it has started
        said, _ = process.communicate()
        raise subprocess.TimeoutExpired(list(map(str, words)), limit_s, output=said) from None
    if process.returncode:
        last = "\n".join((said + complained).strip().splitlines()[-8:])
        raise RuntimeError(f"{' '.join(map(str, words))}: exit {process.returncode}\n{last}")
    return said


def build(folder: Path, platforms: Sequence[str]) -> tuple[dict[str, Path], Path]:
    """Build a wheel for each platform, with the loop of the simulator compiled by zig, and the source distribution.

    Raises:
        SystemExit: a wheel lacks licences or the compiled loop.
    """
    dist = folder / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    command(["uv", "build", "--quiet", "--sdist", "--out-dir", dist])
    wheels: dict[str, Path] = {}
    for name in platforms:
        words = ["uv", "build", "--quiet", "--wheel", "--out-dir", dist]
        more = {"RACKLINE_TARGET": name, "ZIG_GLOBAL_CACHE_DIR": str(folder / "zig")}
        command(words, limit_s=BUILD_LIMIT_S, more=more)
        (wheels[name],) = set(dist.glob("*.whl")) - set(wheels.values())
        names = zipfile.ZipFile(wheels[name]).namelist()
        licences = {Path(file).name for file in names if ".dist-info/licenses/" in file}
        if not licences >= {"LICENSE", "NOTICE", "LICENSES.txt"}:
            raise SystemExit(f"{wheels[name].name} lacks licences: has {sorted(licences)}")
        if not any(Path(file).stem == "libreplica" for file in names):
            raise SystemExit(f"{wheels[name].name} lacks the compiled loop")
    (dist / ".gitignore").unlink(missing_ok=True)
    (source,) = dist.glob("*.tar.gz")
    return wheels, source


def parts(folder: Path) -> Path:
    """All parts as CycloneDX: what the lock file resolves for every extra, and what is vendored in the wheel."""
    text = command(
        ["uv", "export", "--quiet", "--frozen", "--no-dev", "--all-extras", "--format", "cyclonedx1.5",
         "--preview-features", "sbom-export"]
    )  # fmt: skip
    bill: dict[str, Any] = json.loads(text)
    for file, entry in json.loads(VENDORED.read_text(encoding="utf-8")).items():
        bill["components"].append(
            {
                "type": "library",
                "bom-ref": f"vendored-{entry['package']}@{entry['version']}",
                "name": entry["package"],
                "version": entry["version"],
                "purl": f"pkg:npm/{entry['package']}@{entry['version']}",
                "hashes": [{"alg": "SHA-256", "content": entry["sha256"]}],
                "licenses": [{"license": {"id": "BSD-3-Clause"}}],
                "properties": [{"name": "rackline:vendored", "value": file}],
            }
        )
    path = folder / "sbom.cdx.json"
    path.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    return path


def megabytes(environment: Path) -> float:
    """Size of what is installed."""
    files = (path for path in environment.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files if path.suffix != ".pyc") / 1e6


def plan_answers(rackline: Path, folder: Path) -> str:
    """The main job: a plan."""
    answer = json.loads(command([rackline, "plan", *SERVING, "--tpot", "50ms", "--json"], cwd=folder))
    if not answer["compiled_loop"]:
        raise ValueError("the compiled loop is missing")
    best = answer["best"]
    degrees = ", ".join(f"{name}={degree}" for name, degree in best["layout"].items() if degree > 1)
    return f"`plan`: {degrees}, {best['tpot_s'] * 1e3:.1f} ms per output token"


def picture_is_drawn(rackline: Path, folder: Path) -> str:
    """A figure as an image."""
    command([rackline, "explain", *SERVING, "--batch", "64", "--context", "4k", "--plot", "pass.svg"], cwd=folder)
    return f"`explain --plot pass.svg`: {(folder / 'pass.svg').stat().st_size / 1e3:.0f} kB"


def page_is_served(rackline: Path, folder: Path) -> str:
    """The server starts, says that it is healthy, gives the page and ends when it is told to."""
    server = subprocess.Popen(
        [rackline, "web", "--port", "0", "--no-browser", "--workers", "2"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        address = ""
        for line in server.stdout or ():
            if found := re.search(r"http://\S+(?=/ )", line):
                address = found[0]
                break
        with urllib.request.urlopen(f"{address}/health", timeout=60) as health:
            status = health.status
        with urllib.request.urlopen(address, timeout=60) as page:
            size = len(page.read())
        server.terminate()
        server.wait(COMMAND_LIMIT_S)
    finally:
        server.kill()
    return f"`web`: /health {status}, page {size / 1e3:.0f} kB"


def space_is_swept(rackline: Path, folder: Path, *more: str) -> str:
    """A small sweep, and what is read from it."""
    (folder / "space.toml").write_text(SPACE, encoding="utf-8")
    command([rackline, "sweep", "space.toml", "--out", "space", "--workers", "1", *more], cwd=folder)
    shown = command([rackline, "sweep-show", "space"], cwd=folder).splitlines()
    return f"`sweep{' --ray local' if more else ''}`: {shown[0]}"


def mechanism_is_measured(rackline: Path, folder: Path) -> str:
    """An experiment of the lab."""
    found = json.loads(command([rackline, "lab", "experts", "--quick", "--json"], cwd=folder))
    readings = sum(len(one["rows"]) for one in found["experiments"])
    return f"`lab experts --quick`: {readings} rows"


MAIN: dict[str, Callable[[Path, Path], str]] = {
    "none": plan_answers,
    "plot": picture_is_drawn,
    "web": page_is_served,
    "sweep": space_is_swept,
    "lab": mechanism_is_measured,
    "ray": lambda rackline, folder: space_is_swept(rackline, folder, "--ray", "local"),
}


def install_and_try(wheel: Path, folder: Path, python: str, extra: str) -> Tried:
    """One environment with one extra, and its main command."""
    environment = folder / f"{Path(python).parent.parent.name or python}-{extra}"
    shutil.rmtree(environment, ignore_errors=True)
    environment.mkdir(parents=True)
    venv = environment / "venv"
    what = str(wheel) if extra == "none" else f"{wheel}[{extra}]"
    try:
        command(["uv", "venv", "--quiet", "--python", python, "--no-python-downloads", venv])
        # installed packages only: a package without a wheel would be compiled by the machine at hand
        command(["uv", "pip", "install", "--quiet", "--only-binary", ":all:", "--python", venv / "bin/python", what])
    except RuntimeError as error:
        return Tried(python=python, extra=extra, said=" ".join(str(error).split())[-150:], skipped=True)
    listed = command(["uv", "pip", "list", "--quiet", "--format", "json", "--python", venv / "bin/python"])
    size, packages = megabytes(venv), len(json.loads(listed))
    try:
        said, failed = MAIN[extra](venv / "bin/rackline", environment), False
    except (RuntimeError, OSError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
        said, failed = f"FAILED: {error}", True
    version = command([venv / "bin/python", "-c", "import platform; print(platform.python_version())"]).strip()
    shutil.rmtree(environment)
    return Tried(python=version, extra=extra, packages=packages, megabytes=size, said=said, failed=failed)


def tests_of_both(wheel: Path, source: Path, folder: Path) -> tuple[str, bool]:
    """What the fast tests of the unpacked source distribution say of the wheel, and whether all passed."""
    target = folder / "source"
    shutil.rmtree(target, ignore_errors=True)
    with tarfile.open(source) as archive:
        archive.extractall(target, filter="data")
    (tree,) = target.iterdir()
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command(["uv", "sync", "--quiet", "--locked", "--all-extras", "--no-install-project"], cwd=tree)
    command(["uv", "pip", "install", "--quiet", "--no-deps", wheel], cwd=tree)  # not the sources beside the tests
    cores = str(os.cpu_count() or 1)  # named folders run in one process unless a number is given
    words = ["uv", "run", "--no-sync", "pytest", "-q", "-n", cores, "-m", "not slow", *FAST_TESTS]
    try:
        said, passed = command(words, cwd=tree, limit_s=TESTS_LIMIT_S).strip().splitlines()[-1], True
    except RuntimeError as error:
        said, passed = str(error), False
    except subprocess.TimeoutExpired as error:
        dots = "".join(re.findall(r"^[.FEsx]+", error.output or "", re.M))
        said = f"not ended after {TESTS_LIMIT_S} s; {dots.count('.')} passed, {dots.count('F')} failed until then"
        passed = False
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return f"{said.strip('= ')} ({seconds:.0f} s of CPU)", passed


def table(tried: Sequence[Tried]) -> str:
    """Installations as a Markdown table."""
    lines = ["| Python | extra | packages | MB installed | main command |", "|---|---|---|---|---|"]
    for one in tried:
        size = "" if one.megabytes is None else f"{one.megabytes:.0f}"
        packages = "" if one.packages is None else str(one.packages)
        said = f"not tried: {one.said}" if one.skipped else one.said.replace("\n", " ")
        lines.append(f"| {one.python} | {one.extra} | {packages} | {size} | {said} |")
    return "\n".join(lines)


def written(page: str, name: str, text: str) -> str:
    """The page with the text between its marks `<!-- NAME -->` and `<!-- end of NAME -->` replaced."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.S)
    if not pattern.search(page):
        raise SystemExit(f"the page has no marks for {name}")
    return pattern.sub(lambda match: f"{match[1]}\n{text}\n\n{match[2]}", page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, try, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "release", help="where everything is written")
    parser.add_argument("--python", nargs="+", default=["3.11"], help="versions of Python, or paths of interpreters")
    parser.add_argument(
        "--platform",
        nargs="+",
        choices=PLATFORMS,
        default=[HERE],
        help="what wheels are built for; this machine's is tried",
    )
    parser.add_argument("--extra", nargs="+", choices=EXTRAS, default=list(EXTRAS[:-1]), help="extras, each alone")
    parser.add_argument("--ray", action="store_true", help="also the extra ray, once, with the first Python")
    parser.add_argument(
        "--sdist", action="store_true", help="run the fast tests of the source distribution against the wheel"
    )
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.relative_to(ROOT)}")
    given = parser.parse_args(arguments)
    if HERE not in given.platform:
        parser.error(f"argument --platform: the wheel of this machine ({HERE}) is the one that is tried")
    folder: Path = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)

    wheels, source = build(folder, given.platform)
    wheel = wheels[HERE]
    bill = parts(folder)
    count = len(json.loads(bill.read_text(encoding="utf-8"))["components"])
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    sizes = (
        f"rackline {version}: wheel of {HERE} {wheel.stat().st_size / 1e6:.1f} MB, source distribution "
        f"{source.stat().st_size / 1e6:.1f} MB; {count} parts in {bill.name}."
    )
    print(sizes)

    store = folder / "tried.json"  # of this version; what is run again replaces its row
    kept = json.loads(store.read_text(encoding="utf-8")) if store.is_file() else {}
    tried = {(one["python"], one["extra"]): Tried(**one) for one in kept.get(version, []) if not one["skipped"]}
    pairs = [(python, extra) for python in given.python for extra in given.extra]
    pairs += [(given.python[0], "ray")] if given.ray and "ray" not in given.extra else []
    for python, extra in pairs:
        start = time.monotonic()
        one = install_and_try(wheel, folder, python, extra)
        tried[one.python, extra] = one
        store.write_text(json.dumps({version: [asdict(each) for each in tried.values()]}, indent=1), encoding="utf-8")
        print(f"{python} {extra}: {time.monotonic() - start:.0f} s; {one.said}", flush=True)
    rows = sorted(tried.values(), key=lambda one: (one.python, EXTRAS.index(one.extra)))
    text = table(rows)
    print(f"\n{text}")
    passed, said = True, ""
    if given.sdist:
        said, passed = tests_of_both(wheel, source, folder)
        print(f"\nfast tests: {said}")
    if given.write:
        page = PAGE.read_text(encoding="utf-8")
        page = written(written(page, "sizes", sizes), "installations", text)
        if given.sdist and passed:
            page = written(
                page, "tests", f"Fast tests of the unpacked source distribution, against the installed wheel: {said}."
            )
        PAGE.write_text(page, encoding="utf-8")
    return 0 if passed and not any(one.failed for one in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
