"""Give launch commands to the argument parsers of vLLM, SGLang and their routers, and keep tables of their flags.

    pip download --no-deps -d WHEELS vllm==0.33.0 vllm==0.12.0 sglang==0.5.23 sglang==0.5.6   # one version a call
    pip download --no-deps -d WHEELS vllm-router==0.1.17 sglang-router==0.3.2
    uv run --with msgspec --with regex --with cachetools --with psutil --with pyyaml \\
        python bench/engine_flags.py WHEELS --plans 200 [--write]

The parsers run from the wheels, in a process of their own, without the engines' dependencies: what is not installed
(torch, triton, transformers) and the packages of the engines beside their arguments are stand-ins. Random plans are
searched in the steady state; every command is given to the parser of each version that was asked for. With `--write`
the flags and their choices go to `tests/data/engine_flags/ENGINE-VERSION.json`, read by `tests/unit/test_launch.py`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

ENGINES, ROUTERS = ("vllm", "sglang"), ("vllm_router", "sglang_router")
HERE = Path(__file__).parent
TABLES = HERE.parent / "tests" / "data" / "engine_flags"


def wheels(folder: Path) -> list[tuple[str, str, Path]]:
    """(engine, version, file) of the wheels in a folder."""
    found = [(*path.name.split("-")[:2], path) for path in sorted(folder.glob("*.whl"))]
    return [(engine, version, path) for engine, version, path in found if engine in ENGINES + ROUTERS]


def parse(engine: str, wheel: Path, commands: list[list[str]]) -> dict[str, Any]:
    """The flags of an engine, and what its parser says to each command (None where it takes it)."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.endswith((".py", ".json"))])
        done = subprocess.run(
            [sys.executable, str(HERE / "engine_parser.py"), engine, folder],
            input=json.dumps(commands),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{wheel.name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def random_commands(engine: str, version: str, count: int, seed: int) -> list[list[str]]:
    """Launch commands of random plans of an engine in a version."""
    import numpy as np

    from rackline.api.answer import Watch
    from rackline.api.model_options import checkpoints_of
    from rackline.api.resolve import Lookup
    from rackline.arch import model
    from rackline.catalog import names
    from rackline.hardware import cluster
    from rackline.passes import calibration
    from rackline.search import SearchSpace, plan
    from rackline.search.launch_plan import LaunchOptions, plan_commands
    from rackline.search.launch_rules import launch_rules
    from rackline.serving.workload import Workload
    from rackline.system import Constraints, Demand, System

    draw = np.random.default_rng(seed)
    models = [name for name in names("models") if "mpt" not in name and "palm" not in name]
    places = ["dgx-h100", "dgx-h200", "dgx-b200", "h100-96", "gb200-nvl72", "mi300x-8", "mi355x-8", "l40s-8"]
    rules, found = launch_rules(engine, version), list[list[str]]()
    plans = 0
    while plans < count:
        name, on = str(draw.choice(models)), cluster(str(draw.choice(places)))
        size = int(draw.choice([1, 2, 4, 8, 12, 16, 24, 32, 64]))
        on = on.with_num_chips(min(size, on.max_chips))
        answer = plan(
            System.of(model(name), on, calibration=calibration(engine, on.chip)),
            Demand(
                workload=Workload(
                    input_len=float(draw.integers(100, 20000)), output_len=float(draw.integers(20, 4000))
                ),
                limits=Constraints(tpot_s=float(draw.choice([0.02, 0.05, 0.2]))),
            ),
            SearchSpace(rules=rules),
            served=False,
        )
        options = LaunchOptions(stack=engine, version=version)
        commands = plan_commands(answer, checkpoints_of(name, Lookup(watch=Watch(), offline=True)), options)
        found += [list(command.words) for command in commands]
        plans += bool(commands)
    return found


def router_commands(engine: str) -> list[list[str]]:
    """Commands of a router: several replicas, and pools."""
    from rackline.arch import model
    from rackline.hardware import cluster
    from rackline.parallel import Layout, precision
    from rackline.search.launch_commands import router_command
    from rackline.search.launch_plan import Checkpoints, LaunchOptions, ReplicaKind, commands_of
    from rackline.serving.workload import Mode, Workload

    of, on = model("llama-3.1-8b"), cluster("h100-96")
    stack = engine.removesuffix("_router")
    found: list[list[str]] = []
    for roles in (("both",), ("prefill", "decode")):
        kinds = [
            ReplicaKind(
                role=role, layout=Layout(tp=2, dp=7), precision=precision("bf16", of, on.chip), mode=Mode(),
                max_num_seqs=64, on=on,
            )
            for role in roles
        ]  # fmt: skip
        lengths = Workload(input_len=1000, output_len=200)
        commands = commands_of(kinds, of, lengths, Checkpoints(released="x/y"), LaunchOptions(stack=stack))
        for kept in (False, True):
            router = router_command(commands, kept_prefixes=kept)
            found += [list(router.words)] if router is not None else []
    return found


def main() -> int:
    """Check, and write the tables where that is asked for; 1 where a parser refuses a command."""
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("wheels", type=Path)
    reader.add_argument("--plans", type=int, default=200)
    reader.add_argument("--seed", type=int, default=0)
    reader.add_argument("--write", action="store_true")
    given = reader.parse_args()
    bad = 0
    for engine, version, wheel in wheels(given.wheels):
        of_router = engine in ROUTERS
        commands = router_commands(engine) if of_router else random_commands(engine, version, given.plans, given.seed)
        answer = parse(engine, wheel, commands)
        said = [(words, error) for words, error in zip(commands, answer["errors"], strict=True) if error]
        bad += len(said)
        print(f"{engine} {version}: {len(answer['flags'])} flags, {len(commands)} commands, {len(said)} refused")
        for words, error in said[:5]:
            print("   ", " ".join(words), "\n       ", error)
        if given.write:
            TABLES.mkdir(parents=True, exist_ok=True)
            table = {"engine": engine, "version": version, "wheel": wheel.name, "flags": answer["flags"]}
            (TABLES / f"{engine}-{version}.json").write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
