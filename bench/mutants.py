"""Mutants: small changes of the source at random places, each of which some test should notice.

    uv run --group mutants python bench/mutants.py cover                 # once: which test runs which line (minutes)
    uv run --group mutants python bench/mutants.py run --seed 16 --count 100
    uv run --group mutants python bench/mutants.py report --seed 16      # table and survivors, as Markdown
    uv run --group mutants python bench/mutants.py run --seed 16 --again # those that survived, with the tests of today

    uv run --group mutants python bench/mutants.py run --seed 17 --by-name --minutes 35   # needs no `cover`

Changes are those of cosmic-ray (operators, comparisons, numbers, conditions, loops, decorators, exceptions). A file is
drawn first, by its size, then one of its places, then one of the changes there: binary operators, which have eleven, do
not crowd out the rest, and only files that are drawn are searched for places. Changes of annotations alone are not
drawn. All runs in a copy of the committed tree under build/mutants, so the checkout is never changed.

Tests are those that ran the line (slow ones and commands run as processes are left out); for lines that run once at
import, those that ran any line of the file. The quickest of each file of tests go first, until
`--seconds` of their usual time; the first that fails ends it. What runs three times as long counts as noticed.

With `--by-name` tests are the examples in the docstring of the function, then those of the fourteen files that name it,
its class or its module most, nearest first, and those that read the source, in one process, until `--seconds` of
processor time; a test counts only if it passes without the change. Tests further away are not run, so that what is
noticed is a lower bound. Stored examples (tests/golden/test_stored_answers.py) are never asked: they notice that
something changed, not that it is wrong.

Two runs may share a machine: `--part 1/2` and, with a tree of its own, `MUTANTS_TREE=2 ... --part 2/2`.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import re
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from committed_tree import ROOT, copy_committed_tree  # a sibling in this folder

_WORK = ROOT / "build" / "mutants"
_COVERED = _WORK / "tree"
_TREE = _WORK / f"tree{os.environ.get('MUTANTS_TREE', '')}"
_DATA = _WORK / "coverage.db"
_TESTS = tuple(
    f"tests/{name}"
    for name in ("unit", "property", "golden", "validation", "architecture", "docs", "e2e", "lab", "web")
)
_EXAMPLES = "tests/golden/test_stored_answers.py"
_OF_SOURCE = "tests/architecture/test_source_files.py"
PACKAGES = tuple(sorted(file.parent.name for file in (ROOT / "src" / "rackline").glob("*/__init__.py")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change: of which file, by which operator of cosmic-ray, at its how manieth place."""

    path: str
    operator: str
    occurrence: int
    line: int
    last_line: int
    column: int


def main() -> int:
    """Collect, run or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cover", "run", "report"])
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=90.0, help="usual time of the tests of one mutant")
    parser.add_argument("--again", action="store_true", help="only mutants that survived so far")
    parser.add_argument("--by-name", action="store_true", help="tests that name what is changed")
    parser.add_argument("--part", default="1/1", help="which of how many parts of the mutants, such as 2/2")
    parser.add_argument("--minutes", type=float, default=1e9, help="processor time after which no mutant begins")
    parser.add_argument("--package", choices=PACKAGES, action="append", help="only these packages")
    given = parser.parse_args()
    results = _WORK / f"seed-{given.seed}.jsonl"
    if given.what == "cover":
        prepare_tree()
        cover(_DATA, "-m", "not slow and not nightly", "--deselect", _EXAMPLES, *_TESTS)
        return 0
    if given.what == "report":
        print(report(read(results)))
        return 0
    prepare_tree()
    before = read(results)
    tests = Named() if given.by_name else Tests(_DATA)
    part, parts = map(int, given.part.split("/"))
    for number, (mutant, source) in enumerate(drawn(given.seed, given.count, tuple(given.package or PACKAGES))):
        if number % parts != part - 1:
            continue
        key = json.dumps(asdict(mutant))
        if key in before and not (given.again and before[key]["outcome"] == "survived"):
            continue
        if children_s() > 60 * given.minutes:
            break
        start = time.perf_counter()
        outcome, by, ran = tests.judge(mutant, source, given.seconds)
        line = asdict(mutant) | {"outcome": outcome, "by": by, "tests": ran, "diff": difference(mutant, source)}
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line | {"seconds": round(time.perf_counter() - start, 1)}) + "\n")
        print(
            f"{outcome:9} {mutant.path}:{mutant.line} {mutant.operator} {time.perf_counter() - start:.0f} s", flush=True
        )
    print(report(read(results)))
    return 0


def prepare_tree() -> None:
    """Copy the committed tree to where mutants may change it."""
    copy_committed_tree(_TREE)
    compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", str(_TREE / "src")]
    subprocess.run(compiled, check=True)  # by their hash changes within a second are seen


def children_s() -> float:
    """Processor time of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def pytest(
    *words: str, timeout_s: float | None = None, cpu_s: int | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Tests of the copy, by this Python."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "chosen_tests",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
    ]
    if cpu_s is not None:
        command = ["prlimit", f"--cpu={cpu_s}", *command, "-n", "0"]
    paths = os.pathsep.join([str(_TREE / "src"), str(ROOT / "bench")])
    inherited = os.environ | {"PYTHONPATH": paths}
    return subprocess.run(
        [*command, "--hypothesis-seed=0", "-q", *words],
        cwd=_TREE, env=inherited | environment, timeout=timeout_s, capture_output=True, text=True, check=False,
    )  # fmt: skip


def cover(data: Path, *words: str) -> None:
    """Which of some tests runs which line."""
    source = json.dumps([str(_TREE / "src" / "rackline" / package) for package in PACKAGES])
    data.unlink(missing_ok=True)
    start = time.perf_counter()
    run = pytest(*words, MUTANTS_COVERAGE=str(data), MUTANTS_SOURCE=source)
    print(f"{run.stdout[-600:]}{run.stderr[-300:]}\n{data.name}: {time.perf_counter() - start:.0f} s", flush=True)


def places(path: Path) -> dict[tuple[int, int, str], list[Mutant]]:
    """The changes of a file, by place and kind of change."""
    import cosmic_ray.plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    tree = get_ast(path.read_text(encoding="utf-8"))
    nodes = list(ast_nodes(tree))
    found: dict[tuple[int, int, str], list[Mutant]] = defaultdict(list)
    for name in cosmic_ray.plugins.operator_names():
        kind = cosmic_ray.plugins.get_operator(name)
        if kind.arguments():
            continue
        spans = (span for node in nodes for span in kind().mutation_positions(node))
        family = name.rsplit("/", 1)[-1].split("_")[0]
        for occurrence, ((line, column), (last, _)) in enumerate(spans):
            where = {"line": line, "last_line": last, "column": column}
            mutant = Mutant(path=str(path.relative_to(_TREE)), operator=name, occurrence=occurrence, **where)
            found[line, column, family].append(mutant)
    return found


def drawn(seed: int, count: int, packages: tuple[str, ...]) -> Iterator[tuple[Mutant, str]]:
    """That many mutants and their sources: a place at random, then one of its changes."""
    import cosmic_ray.plugins
    from cosmic_ray.mutating import mutate_code

    files = sorted(path for package in packages for path in (_TREE / "src" / "rackline" / package).rglob("*.py"))
    sizes = [path.stat().st_size for path in files]
    rng = random.Random(seed)
    found: dict[Path, list[list[Mutant]]] = {}
    left = count
    while left:
        (path,) = rng.choices(files, sizes)
        if path not in found:
            found[path] = [mutants for _, mutants in sorted(places(path).items())]
            rng.shuffle(found[path])
        if not found[path]:
            continue
        mutant = rng.choice(found[path].pop())
        original = (_TREE / mutant.path).read_text(encoding="utf-8")
        changed = mutate_code(original, cosmic_ray.plugins.get_operator(mutant.operator)(), mutant.occurrence)
        if changed is None or not changes_anything(original, changed):
            continue
        yield mutant, changed
        left -= 1


class _Plain(ast.NodeTransformer):
    """Without annotations, which are text only, and without docstrings."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        node.annotation = ast.Constant(None)
        return node


def changes_anything(original: str, changed: str) -> bool:
    """Whether more differs than annotations and layout; what is no Python any more is no mutant."""
    try:
        trees = [ast.dump(_Plain().visit(ast.parse(text))) for text in (original, changed)]
    except SyntaxError:
        return False
    return trees[0] != trees[1]


def difference(mutant: Mutant, source: str) -> str:
    """Lines removed and added."""
    original = (_TREE / mutant.path).read_text(encoding="utf-8")
    lines = difflib.unified_diff(original.splitlines(), source.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---"))


class Tests:
    """Which test runs which line, how long it usually takes."""

    def __init__(self, data: Path) -> None:
        import coverage

        self._seconds: dict[str, float] = json.loads(data.with_suffix(".json").read_text(encoding="utf-8"))
        self._data = coverage.CoverageData(basename=str(data))
        self._data.read()

    def of(self, mutant: Mutant) -> list[str]:
        """Tests that ran the lines, else the file; the quickest of each file of tests first."""
        at_line: set[str] = set()
        in_file: set[str] = set()
        for line, contexts in self._data.contexts_by_lineno(str(_COVERED / mutant.path)).items():
            in_file.update(contexts)
            if mutant.line <= line <= mutant.last_line:
                at_line.update(contexts)
        if not in_file:  # nothing but what runs once at import: tests of the package
            folder = str((_COVERED / mutant.path).parent)
            for other in self._data.measured_files():
                if other.startswith(folder):
                    in_file.update(name for names in self._data.contexts_by_lineno(other).values() for name in names)
        return self._in_order(at_line) + self._in_order(in_file - at_line)

    def _in_order(self, tests: set[str]) -> list[str]:
        files: dict[str, list[str]] = defaultdict(list)
        for test in sorted(tests & self._seconds.keys(), key=self._seconds.__getitem__):
            files[test.split("::")[0]].append(test)
        ranked = [(at // 3, self._seconds[test], test) for group in files.values() for at, test in enumerate(group)]
        return [test for _, _, test in sorted(ranked)]

    def judge(self, mutant: Mutant, source: str, limit_s: float) -> tuple[str, str, int]:
        """Outcome (killed, timeout, survived, untested), the test that noticed, and how many were to run."""
        rounds: list[list[str]] = [[], []]
        spent = 0.0
        for test in self.of(mutant):
            spent += self._seconds[test] + 0.02
            if spent > limit_s:
                break
            rounds[spent > limit_s / 6].append(test)
        path = _TREE / mutant.path
        original = path.read_text(encoding="utf-8")
        if not rounds[0]:
            return "untested", "", 0
        try:
            path.write_text(source, encoding="utf-8")
            for tests in filter(None, rounds):
                chosen = _WORK / "chosen.json"
                chosen.write_text(json.dumps(tests), encoding="utf-8")
                files = list(dict.fromkeys(test.split("::")[0] for test in tests))
                environment = {"MUTANTS_TESTS": str(chosen)}
                try:
                    run = pytest("-x", *files, timeout_s=3 * limit_s + 120, **environment)
                except subprocess.TimeoutExpired:
                    return "timeout", "", len(tests)
                if run.returncode:
                    failed = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                    return "killed", (failed or [run.stdout[-300:] + run.stderr[-300:]])[0], len(tests)
        finally:
            path.write_text(original, encoding="utf-8")
        return "survived", "", sum(map(len, rounds))


_SIGKILL, _SIGXCPU = 9, 24


class Named:
    """Tests of the files that name what is changed."""

    def __init__(self) -> None:
        paths = (
            path
            for folder in _TESTS
            for path in sorted((_TREE / folder).glob("test_*.py"))
            if str(path.relative_to(_TREE)) != _EXAMPLES
        )
        self._texts = {str(path.relative_to(_TREE)): path.read_text(encoding="utf-8") for path in paths}
        self._fails: dict[str, bool] = {}

    def of(self, mutant: Mutant) -> list[str]:
        """At most fourteen files, the nearest first: its module, the function or class around the line, its package."""
        path = Path(mutant.path)
        package, module = path.parts[2], path.stem
        around = [
            node.name
            for node in ast.walk(ast.parse((_TREE / path).read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and node.lineno <= mutant.line <= (node.end_lineno or 0)
            and not node.name.startswith("__")
        ]
        names = [(name.strip("_"), 5) for name in around]
        names += [(".".join(path.with_suffix("").parts[1:]), 4), (f"rackline.{package}", 1)]

        def score(file: str) -> float:
            text = self._texts[file]
            named = sum(weight * bool(re.search(rf"\b{re.escape(name)}\b", text)) for name, weight in names)
            return named + 4 * (module in Path(file).stem)

        ranked = sorted(self._texts, key=lambda file: (-score(file), len(self._texts[file])))
        return [file for file in ranked[:14] if score(file) > 0]

    def examples(self, mutant: Mutant) -> list[str]:
        """The examples in docstrings of the functions and classes around the line."""
        module = ".".join(Path(mutant.path).with_suffix("").parts[1:])
        return [
            f"tests/docs/test_examples.py::test_docstring_examples[{module}.{node.name}:{node.body[0].lineno}]"
            for node in ast.walk(ast.parse((_TREE / mutant.path).read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and node.lineno <= mutant.line <= (node.end_lineno or 0)
            and ">>> " in (ast.get_docstring(node) or "")
        ]

    def judge(self, mutant: Mutant, source: str, limit_s: float) -> tuple[str, str, int]:
        """Outcome (killed, survived), the test that noticed or why none could, and how many files were to run."""
        line = (_TREE / mutant.path).read_text(encoding="utf-8").splitlines()[mutant.line - 1]
        files = list(dict.fromkeys([*self.examples(mutant), *self.of(mutant), _OF_SOURCE]))
        if "dataclass(" in line:  # what no other test sees, and takes its time to read
            failed = self._first_failure(mutant, source, max(limit_s, 30.0), _OF_SOURCE)
            if failed.startswith("tests/"):
                return "killed", failed, 1
        failed = self._first_failure(mutant, source, limit_s, "-m", "not slow and not nightly", *files)
        return "killed" if failed.startswith("tests/") else "survived", failed, len(files)

    def _first_failure(self, mutant: Mutant, source: str, limit_s: float, *words: str, **environment: str) -> str:
        """The first test that fails with the change and passes without; else how the run ended."""
        path = _TREE / mutant.path
        original = path.read_text(encoding="utf-8")
        passed_over: list[str] = []
        while True:
            left_out = (word for test in passed_over for word in ("--deselect", test))
            try:
                path.write_text(source, encoding="utf-8")
                run = pytest("-x", *words, *left_out, cpu_s=int(limit_s) + 1, **environment)
            finally:
                path.write_text(original, encoding="utf-8")
            if run.returncode in (-_SIGXCPU, -_SIGKILL):
                return "time ended"
            if run.returncode in (0, 5):  # 5: no test but slow ones
                return "all passed"
            lines = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            test = lines[0].split(" ")[1] if lines else words[-1]
            if test not in self._fails:
                again = [test] if "::" in test else ["--collect-only", test]
                self._fails[test] = pytest("-x", *again, cpu_s=120).returncode != 0
            if not self._fails[test] or test in passed_over:
                return test
            passed_over.append(test)


def read(path: Path) -> dict[str, dict[str, object]]:
    """The last result of each mutant."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    fields = Mutant.__dataclass_fields__
    return {json.dumps({key: line[key] for key in fields}): line for line in lines}


def report(results: dict[str, dict[str, object]]) -> str:
    """A table by package, then the survivors."""
    by_package: dict[str, list[str]] = defaultdict(list)
    for result in results.values():
        by_package[str(result["path"]).split("/")[2]].append(str(result["outcome"]))
    lines = ["| package | mutants | noticed | survived |", "|---|---|---|---|"]
    for package, outcomes in sorted(by_package.items()):
        noticed = sum(outcome in ("killed", "timeout") for outcome in outcomes)
        lines.append(f"| {package} | {len(outcomes)} | {noticed} | {len(outcomes) - noticed} |")
    for result in results.values():
        if result["outcome"] not in ("killed", "timeout"):
            lines.append(
                f"\n{result['outcome']} {result['path']}:{result['line']} ({result['tests']} tests)\n{result['diff']}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
