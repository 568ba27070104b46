"""One plan asked through every door: each gives the same numbers.

    uv run python bench/agreement.py --cases 300 docs/measured/agreement.json

`cases` draws deployments: model and cluster × stack and version × objective × kind of workload × options of `plan`.
Each is asked in Python, as the command that is printed for it, in a file of questions (every value a list of one), as
the body and as the address of an HTTP request, as a row of a sweep, with `--what-if` at the value that the chip has,
and by `compare` where it has the options; `explain` and `fit` are asked about the answer. Numbers are equal to 1e-9 of
themselves; where one door refuses, all do, in the same words.

Plans are estimated, not simulated (`Plan.served` is replaced): what a simulation adds is compared in
tests/e2e/test_agreement.py and tests/unit/test_served.py. `price` searches modes of its own and is not asked.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from leaves import ABSENT, close, is_number, leaf_pairs, same  # a sibling in this folder

import rackline as rl
from rackline.api.answer import Watch
from rackline.api.ask import ask_one
from rackline.api.compare import CompareQuestion
from rackline.api.plan_parts import PlanQuestion
from rackline.api.question import command_of, options
from rackline.cli.main import run
from rackline.errors import RacklineError
from rackline.hardware import cluster
from rackline.search.plan import Plan
from rackline.sweeps.file import read_file
from rackline.sweeps.questions import ask_once
from rackline.web.asked import Limits, asked_by_body, asked_by_params
from rackline.web.forms import question_body

TOLERANCE = 1e-9
VOLATILE = {"elapsed_s", "question", "warnings", "model_origins"}
PLANNED = ("tpot_s", "ttft_s", "requests_per_s", "batch_size", "num_chips", "output_tokens_per_s_per_chip")

DEPLOYMENTS = (
    {"model": "llama-3.1-8b", "on": "dgx-h100", "layout": "tp=1", "chips": 2},
    {"model": "llama-3.1-8b", "on": "dgx-a100", "layout": "tp=1", "chips": 2},
    {"model": "llama-3.1-70b", "on": "dgx-h100", "layout": "tp=4", "chips": 4},
    {"model": "llama-3.1-70b", "on": "dgx-h200", "layout": "tp=2", "chips": 4},
    {"model": "qwen3-30b-a3b", "on": "dgx-h200", "layout": "tp=2", "chips": 4},
    {"model": "gpt-oss-120b", "on": "dgx-b200", "layout": "tp=2", "chips": 4},
    {"model": "gemma-3-27b", "on": "mi300x-8", "layout": "tp=2", "chips": 2},
)
STACKS = ("auto", "vllm", "vllm=0.14.0", "vllm=0.11.1", "sglang=0.5.6", "trtllm=1.2.0", "generic", "unit")
OBJECTIVES = ({}, {}, {}, {"objective": "joules", "serving": "aggregated"})
WORKLOADS: tuple[dict[str, Any], ...] = (
    {"input": "2k", "output": 500},
    {"input": 1000, "output": "100"},
    {"input": "4k", "output": 200, "cache_hit": "50%"},
    {"input": "300", "output": 200, "turns": 4, "think_time": "20s", "serving": "aggregated"},
    {"mix": "mix.csv"},
    {"use": "summarise"},
    {"input": "2k", "output": 300, "use": "batch"},
)
MIX = "share,input,output\n0.7,500,200\n0.3,3000,100\n"
OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"tpot": "50ms"}, {"tpot": "40ms@p90", "ttft": "2s@p99"}, {"ttft": "1s"}, {"chips": 4},
    {"bill": "used"}, {"precision": "fp8"}, {"precision": ["bf16", "fp8"]}, {"mode": "chunked=2048"},
    {"mode": ["chunked=4096", "prefill-first"]}, {"memory_fraction": "80%"}, {"power_cap": "400W"},
    {"any_layout": True}, {"routing": "balanced"}, {"price": 2.5}, {"rent": "on-demand"}, {"serving": "aggregated"},
    {"prefill_layout": "tp=2"}, {"traffic": "20k"}, {"requests": "30/s", "peak_over_mean": 1.8, "pue": 1.2},
    {"requests": "5k/min", "offline_share": "30%", "provider": "1M"}, {"users": 500, "think_time": "10s"},
    {"launch": True}, {"launch": True, "engine": "vllm=0.14.0"}, {"speculate": "1,3=2.9"},
    {"set": ["hbm_bytes_per_s=4TB/s"]},
    {"set": {"usd_per_chip_hour": 3.5}}, {"full": True},
)  # fmt: skip


def cases(number: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Options of `plan`, no two alike: each value of each list is drawn about equally often.

    Args:
        number: of cases.
        seed: of the order in which the lists go on.
    """
    rng, seen = random.Random(seed), set[str]()
    lists: list[list[dict[str, Any]]] = [
        [*DEPLOYMENTS], [{"calibration": one} for one in STACKS], [*OBJECTIVES], [*WORKLOADS], [*OPTIONS], [*OPTIONS],
    ]  # fmt: skip
    queues: list[list[dict[str, Any]]] = [[] for _ in lists]
    while len(seen) < number:
        case: dict[str, Any] = {}
        for whole, queue in zip(lists, queues, strict=True):
            if not queue:
                queue.extend(rng.sample(whole, len(whole)))
            case |= queue.pop()
        text = json.dumps(case, sort_keys=True)
        if text not in seen:
            seen.add(text)
            yield case


@contextlib.contextmanager
def estimated() -> Iterator[None]:
    """Plans by their estimates."""
    kept = Plan.served
    Plan.served = lambda self, *_, **__: self  # type: ignore[method-assign]
    try:
        yield
    finally:
        Plan.served = kept  # type: ignore[method-assign]


def disagreements(case: Mapping[str, Any], folder: Path) -> tuple[list[str], Counter[str]]:
    """What differs between the doors, a line each; how often each door was compared.

    Args:
        case: options of `plan`.
        folder: for files; its mixture is written there.
    """
    if "mix" in case:
        (folder / "mix.csv").write_text(MIX)
        case = {**case, "mix": str(folder / "mix.csv")}
    found: list[str] = []
    asked: Counter[str] = Counter()
    with estimated():
        plans: list[Plan] = []
        first = _python(case, plans)
        doors = {
            "command line": _command_line, "ask": _ask, "HTTP body": _body, "HTTP address": _address, "sweep": _sweep,
        }  # fmt: skip
        for name, door in doors.items():
            if name.startswith("HTTP") and "mix" in case:  # a path of the server is refused, by design
                continue
            asked[name] += 1
            found += [f"{name}: {line}" for line in differences(first, door(case, first), keys=name == "sweep")]
        if "refused" not in first and first["best"] is not None:
            for name, said in _about(case, first, plans[0]).items():
                asked[name] += 1
                found += [f"{name}: {line}" for line in said]
    return found, asked


def _data(work: Any) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(work(), default=str))
    except RacklineError as refused:
        return {"refused": str(refused)}


def _python(case: Mapping[str, Any], plans: list[Plan]) -> dict[str, Any]:
    """The answer of the function; its plan is added to `plans`."""

    def found() -> Any:
        answered = rl.plan(**case)
        plans.append(answered.result.plan)
        return answered.to_dict()

    return _data(found)


def _command_line(case: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    try:
        words = shlex.split(command_of(PlanQuestion(**case)))[1:]
    except RacklineError as refused:
        return {"refused": str(refused)}
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        status = run([*words, "--json"])
    if status:
        return {"refused": error.getvalue().removeprefix("error: ").strip()}
    return json.loads(out.getvalue())


def _ask(case: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    from rackline.api.ask import _expanded

    data = PlanQuestion(**case).to_data() if "refused" not in first else {"ask": "plan", **case}
    known = options(PlanQuestion)
    lists = {
        name: [value] if name != "ask" and not known[name].several and known[name].kind != "settings" else value
        for name, value in data.items()
    }
    (one,) = _expanded([lists])
    answered = ask_one(one)
    return {"refused": answered.error} if answered.answer is None else _data(answered.answer.to_dict)


def _body(case: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    return _http(lambda: asked_by_body("plan", "answer", json.loads(json.dumps(case)), Limits()))


def _address(case: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    return _http(lambda: asked_by_params("plan", "answer", list(PlanQuestion(**case).to_params().items())))


def _http(read: Any) -> dict[str, Any]:
    try:
        return json.loads(question_body(read().question, Watch(), view=False, figures=None))
    except RacklineError as refused:
        return {"refused": str(refused)}


def _sweep(case: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a sweep of one point: the columns of its results as they lie in the answer."""
    data = {name: [value] if isinstance(value, list) else value for name, value in case.items()}  # lists are axes
    settings = case.get("set", {})
    data.pop("set", None)
    if isinstance(settings, list):
        settings = dict(text.split("=") for text in settings)
    try:
        file = read_file({"ask": "plan", "options": {**data, "input": [data["input"]]} if "input" in data else data,
                          "set": settings})  # fmt: skip
        columns, reason = ask_once(file, {axis.name: axis.values[0] for axis in file.axes})
    except RacklineError as refused:
        return {"refused": str(refused)}
    nested: dict[str, Any] = {}
    for name, value in columns.items():
        place = nested
        *path, last = name.split(".")
        for key in path:
            place = place.setdefault(key, {})
        place[last] = value
    if all(value is None for value in columns.values()):
        return {"refused": reason} if "refused" in first else {"reason": reason, "best": None}
    return nested


def _about(case: Mapping[str, Any], first: Mapping[str, Any], plan: Plan) -> dict[str, list[str]]:
    """What-if at the value that the chip has, comparison with itself, and questions about the answer."""
    found: dict[str, list[str]] = {}
    best = first["best"]
    if "set" not in case:
        speed = cluster(case["on"]).chip.hbm_bytes_per_s / 1e12
        varied = _data(lambda: rl.plan(**case, what_if=f"hbm_bandwidth={speed!r}TB/s").to_dict())
        point = varied["points"][0]["best"] if "points" in varied else varied
        found["what-if"] = [*differences({key: best[key] for key in PLANNED}, point, keys=True)]
    if case.keys() - {"model", "on"} <= options(CompareQuestion).keys():
        name = f"{case['model']}@{case['on']}"
        rest = {key: value for key, value in case.items() if key not in ("model", "on")}
        try:
            side = rl.compare([name, name], **rest).result.sides[1].values
        except RacklineError as refused:
            side = {"refused": str(refused)}
        found["compare"] = [*differences({key: best[key] for key in PLANNED}, side, keys=True)]
    plain = not {"mix", "turns", "cache_hit", "speculate", "use", "prefill_layout"} & case.keys()
    if plain and best["serving"] == "aggregated":
        found |= _engine(case, plan)
    return found


_OF_ENGINE = ("calibration", "memory_fraction", "power_cap", "routing", "set")


def _engine(case: Mapping[str, Any], plan: Plan) -> dict[str, list[str]]:
    """The decode step of the answer by `explain`, its weights by `fit`, its replicas by `simulate`."""
    one = plan.best
    if one is None or one.inside is None:
        return {}
    parts = {name: getattr(one.layout, name) for name in ("tp", "pp", "ep", "moe_tp", "attention_dp")}
    same = {name: case[name] for name in _OF_ENGINE if name in case}
    same |= {"model": case["model"], "on": case["on"], "precision": one.precision.label}
    if case.get("calibration", "auto") == "auto":
        same["calibration"] = plan.system.calibration.name
    if plan.system.cluster.chip.power_cap_w is not None:  # the one of the least energy, where that was asked for
        same["power_cap"] = plan.system.cluster.chip.power_cap_w
    layout = ",".join(f"{name}={value}" for name, value in parts.items())
    work = plan.demand.workload
    explained = _data(
        lambda: rl.explain(
            **same, layout=layout, batch=one.estimate.batch_size, context=work.input_len + work.output_len / 2
        ).to_dict()
    )
    step = {"seconds": one.inside.decode.seconds, "memory": {"weights_bytes": float(one.inside.memory.weight_total)}}
    found = {"explain": [*differences(step, explained, keys=True)]}
    of_fit = ("model", "on", "precision", "memory_fraction", "set")
    kept = {name: value for name, value in same.items() if name in of_fit}
    fitted = _data(lambda: rl.fit(**kept, layout=layout, context=work.input_len + work.output_len).to_dict())
    row = fitted["layouts"][0] if fitted.get("layouts") else fitted
    found["fit"] = [*differences({"weights_bytes": step["memory"]["weights_bytes"]}, row, keys=True)]
    return found


def differences(before: Any, after: Any, *, keys: bool = False) -> Iterator[str]:
    """Yield a line for each difference of two answers.

    Args:
        keys: whether only keys that both have are compared.
    """
    refusals = [str(answer.get("refused", "answered")) for answer in (before, after)]
    if refusals != ["answered", "answered"]:
        before, after = ({"refused": _plain(text)} for text in refusals)
    stable = [{key: value for key, value in answer.items() if key not in VOLATILE} for answer in (before, after)]
    for place, left, right in leaf_pairs(*stable):
        if keys and ABSENT in (left, right) and not place.endswith("]"):
            continue
        equal = close if is_number(left) and is_number(right) else same  # a table may hold a count as a float
        if not equal(left, right, TOLERANCE):
            yield f"{place}: {str(left)[:120]}, here {str(right)[:120]}"


def _plain(text: str) -> str:
    """A refusal without the way in which a door spells an option: `--power-cap` or `power_cap`."""
    return text.replace("`", "").replace("--for ", "use ").replace("--", "").replace("-", "_")


def main() -> int:
    """Ask, print what differs, store what was asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, nargs="?", help="JSON to write")
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    start, asked, wrong = time.process_time(), Counter[str](), []
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(cases(given.cases, given.seed), start=1):
            lines, doors = disagreements(case, Path(folder))
            asked += doors
            wrong += [{"case": case, "differs": lines}] if lines else []
            for line in lines:
                print(f"{json.dumps(case)}\n    {line}")
            print(f"\r{number} cases, {time.process_time() - start:.0f} CPU s", end="", file=sys.stderr)
    found = {
        "cases": given.cases, "seed": given.seed, "tolerance": TOLERANCE,
        "compared": dict(asked), "differ": wrong, "cpu_s": round(time.process_time() - start),
    }  # fmt: skip
    if given.file is not None:
        given.file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(f"\n{given.cases} cases: {len(wrong)} differ; compared {dict(asked)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
