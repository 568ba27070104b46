"""Answers of some three hundred questions as JSON, before and after a change that must not move them.

    uv run python bench/golden_answers.py write golden.json      # on the tree before the change
    uv run python bench/golden_answers.py compare golden.json    # on the tree after it

Every verb, stacks and their versions, objectives, what-ifs, pools, training, prices and sweeps are asked. Plans are
asked twice: many by their estimates alone (the simulation is replaced by nothing), some in full. `compare` prints each
number that moved by more than 1e-9 of itself, each text that differs, and each key that came or went; exit status 1
where any did. The file of answers is not part of the repository: it belongs to one tree.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from rackline.errors import RacklineError
from rackline.search.plan import Plan

TOLERANCE = 1e-9
VOLATILE = frozenset({"elapsed_s", "rackline_version"})
STACKS = ("auto", "trtllm", "vllm", "sglang", "generic", "unit")
VERSIONS = ("vllm=0.11.1", "vllm=0.14.0", "trtllm=1.2.0", "sglang=0.5.6")


def questions() -> Iterator[tuple[str, dict[str, Any], bool]]:
    """(verb, keywords, whether plans are simulated) of every question."""
    passes = [
        ("llama-3.1-70b", "dgx-h100", "tp=8"),
        ("llama-3.1-8b", "dgx-a100", "tp=1"),
        ("qwen3-235b-a22b", "dgx-h200", "tp=8"),
        ("deepseek-v3", "gb200-nvl72", "attention_dp=16,ep=16"),
        ("gpt-oss-120b", "dgx-b200", "tp=2"),
        ("gemma-3-27b", "mi300x-8", "tp=2"),
    ]
    for (model, on, layout), calibration in product(passes, STACKS):
        for phase in ({"batch": 64}, {"batch": 1, "prefill": "2k"}):
            yield (
                "explain",
                dict(model=model, on=on, layout=layout, context="8k", calibration=calibration, **phase),
                False,
            )
    for (model, on, layout), version in product(passes[:5], VERSIONS):
        yield (
            "explain",
            {"model": model, "on": on, "layout": layout, "batch": 32, "context": "4k", "calibration": version},
            False,
        )
        yield (
            "explain",
            {"model": model, "on": on, "layout": layout, "batch": 32, "context": "4k", "stack": version},
            False,
        )
    for model, on, layout in passes:
        for more in (
            {"sampling": "top-p"},
            {"routing": "uniform"},
            {"precision": "fp8"},
            {"set": "hbm_bytes_per_s=6e12"},
            {"power_cap": 400},
        ):
            yield "explain", dict(model=model, on=on, layout=layout, batch=16, context="2k", **more), False
        for more in ({}, {"chips": 4}, {"memory_fraction": 0.8}):
            yield "fit", dict(model=model, on=on, context="16k", **more), False
    for (model, on, layout), calibration in product(passes[:4], ("auto", "vllm", "trtllm=1.2.0")):
        if "dp" not in layout:
            yield (
                "simulate",
                {
                    "model": model,
                    "on": on,
                    "layout": layout,
                    "rate": 2,
                    "requests": 150,
                    "input": "1k",
                    "output": 64,
                    "calibration": calibration,
                },
                False,
            )
    yield (
        "simulate",
        {
            "model": "llama-3.1-8b",
            "on": "dgx-h100",
            "chips": 2,
            "users": 20,
            "think_time": "5s",
            "requests": 200,
            "input": "1k",
            "output": 64,
        },
        False,
    )
    yield (
        "simulate",
        {
            "model": "llama-3.1-8b",
            "on": "dgx-h100",
            "chips": 2,
            "prefill_layout": "tp=1",
            "layout": "tp=1",
            "rate": 4,
            "requests": 150,
            "input": "2k",
            "output": 64,
        },
        False,
    )
    lengths = {"input": "2k", "output": 500}
    limits = ({"tpot": "50ms"}, {"tpot": "30ms@p99", "ttft": "2s@p99"}, {"ttft": "1s"}, {})
    plans = [("llama-3.1-70b", "dgx-h100"), ("llama-3.1-8b", "dgx-a100"), ("qwen3-30b-a3b", "dgx-h200")]
    for (model, on), limit, calibration in product(plans, limits, ("auto", "vllm", "sglang=0.5.6")):
        yield "plan", dict(model=model, on=on, **lengths, **limit, calibration=calibration), False
    for (model, on), more in product(
        plans,
        (
            {"objective": "joules", "tpot": "50ms"},
            {"serving": "aggregated", "tpot": "50ms"},
            {"chips": 4, "tpot": "50ms"},
            {"bill": "used", "chips": 4, "tpot": "50ms"},
            {"rent": "on-demand", "tpot": "50ms"},
            {"precision": "any", "tpot": "50ms"},
            {"mode": "chunked=2048", "tpot": "50ms"},
            {"power_cap": 400, "tpot": "50ms"},
            {"speculate": "usual", "tpot": "50ms"},
            {"traffic": "1M", "tpot": "50ms"},
            {"requests": 100, "tpot": "50ms"},
            {"cache_hit": "50%", "tpot": "50ms"},
            {"turns": 5, "think_time": "30s", "tpot": "50ms"},
            {"what_if": "hbm_bandwidth=3TB/s,6TB/s", "tpot": "50ms", "serving": "aggregated"},
            {"what_if": "scale_up_size=4,8", "tpot": "50ms"},
            {"launch": "auto", "tpot": "50ms"},
            {"any_layout": True, "tpot": "50ms"},
            {"routing": "balanced", "tpot": "50ms"},
        ),
    ):
        yield "plan", dict(model=model, on=on, **lengths, **more), False
    yield (
        "plan",
        {"model": "deepseek-v3", "on": "gb200-nvl72", "input": "4k", "output": "1k", "tpot": "30ms", "ttft": "2s"},
        False,
    )
    yield (
        "plan",
        {
            "model": "qwen3-235b-a22b",
            "on": "dgx-h200",
            "chips": 16,
            "input": "8k",
            "output": "1k",
            "tpot": "30ms",
            "ttft": "3s",
            "attention_ffn": True,
        },
        False,
    )
    yield (
        "plan",
        {
            "model": "deepseek-v3",
            "on": "gb200-nvl72",
            "chips": 16,
            "prefill_on": "h100-96",
            "input": "4k",
            "output": "1k",
            "tpot": "30ms",
            "precision": "fp8",
        },
        False,
    )
    for model, on, layout in (
        ("llama-3.1-8b", "dgx-h100", "tp=1"),
        ("llama-3.1-70b", "dgx-h100", "tp=4"),
        ("qwen3-30b-a3b", "dgx-h200", "tp=2"),
    ):
        for limit in ({"tpot": "50ms"}, {"tpot": "40ms@p90", "ttft": "2s@p99"}):
            yield (
                "plan",
                dict(
                    model=model,
                    on=on,
                    layout=layout,
                    input="1k",
                    output=100,
                    serving="aggregated",
                    chips=4,
                    mode="chunked=2048",
                    **limit,
                ),
                True,
            )
    yield (
        "plan",
        {
            "model": "llama-3.1-8b",
            "on": "dgx-h100",
            "chips": 4,
            "input": "2k",
            "output": 100,
            "tpot": "20ms",
            "layout": "tp=1",
            "prefill_layout": "tp=1",
        },
        True,
    )
    for model, on in (*plans, ("deepseek-v3", "dgx-h200")):
        yield "price", {"model": model, "on": on}, False
        yield "tiers", {"model": model, "on": on, "prompt": "8k"}, False
    yield "compare", {"items": ("h100", "b200", "mi355x")}, False
    yield (
        "compare",
        {"items": ("llama-3.1-70b@dgx-h100", "llama-3.1-70b@dgx-b200"), "input": "4k", "output": "1k"},
        False,
    )
    yield "compare", {"items": ("llama-3.1-70b@dgx-h100",), "now": "tp=8,batch=64"}, False
    runs = [
        ("llama-3.1-8b", "dgx-h100", 64),
        ("llama-3.1-70b", "dgx-h100", 512),
        ("deepseek-v3", "dgx-h200", 256),
        ("llama-3.1-405b", "dgx-h100", 2048),
    ]
    for (model, on, chips), more in product(
        runs, ({}, {"precision": "fp8"}, {"seq": 4096}, {"recompute": "full"}, {"power_cap": 600})
    ):
        yield "train", dict(model=model, on=on, chips=chips, tokens="1T", global_batch="4M", **more), False
    yield "budget", {"quality_of": "70b@15T", "traffic": "50M", "months": 2}, False
    yield "rl", {"model": "qwen3-8b", "on": "dgx-h100", "chips": 16}, False
    yield "infer-prices", {"sheet": "claude-opus-4.6"}, False
    yield "lecture", {"claim": "C100"}, False
    yield "lecture", {}, False
    for name in ("models", "chips", "clusters", "memory"):
        yield name, {}, False
    for model in ("llama-3.1-70b", "deepseek-v3", "gemma-3-27b", "qwen3-next-80b-a3b"):
        yield "models", {"name": model}, False


@contextmanager
def unserved() -> Iterator[None]:
    """Plans by their estimates."""
    kept = Plan.served
    Plan.served = lambda self, *_, **__: self  # type: ignore[method-assign]
    try:
        yield
    finally:
        Plan.served = kept  # type: ignore[method-assign]


def answer(verb: str, asked: dict[str, Any], served: bool) -> Any:
    """The answer as plain data, with its figure's; a refusal as its text."""
    from rackline.api.answer import answer as solve, find_verb, question_of

    positional = {
        "compare": "items",
        "models": "name",
        "chips": "name",
        "clusters": "name",
        "memory": "name",
        "infer-prices": "sheet",
    }
    keywords = dict(asked)
    first = keywords.pop(positional.get(verb, ""), None)
    try:
        question = question_of(find_verb(verb).question, () if first is None else (first,), keywords)
        if served:
            found = solve(question)
        else:
            with unserved():
                found = solve(question)
        data = found.to_dict()
        if found.verb.figures:
            try:
                data["figure"] = found.plot().spec
            except (RacklineError, AttributeError) as no_figure:
                data["figure"] = str(no_figure)
        return json.loads(json.dumps(data, default=str))
    except RacklineError as refused:
        return {"refused": str(refused)}


def sweep_rows() -> Any:
    """The rows of a small sweep."""
    from rackline.api.answer import answer as solve, find_verb

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.toml"
        file.write_text(
            'title = "golden"\n[options]\nmodel = ["llama-3.1-8b", "llama-3.1-70b"]\non = "dgx-h100"\n'
            'layout = ["tp=8", "tp=4"]\nbatch = [1, 16, 64]\ncontext = ["1k", "8k"]\n[set]\n'
            'hbm_bytes_per_s = { linear = ["2TB/s", "6TB/s"], num = 3 }\n'
        )
        try:
            kind = find_verb("sweep").question
            found = solve(kind.from_data({"ask": "sweep", "file": str(file), "out": f"{folder}/out"}))
            data = found.to_dict()
            return {"points": data["points"], "failed": data["failed"], "rows": parquet_rows(Path(folder) / "out")}
        except (RacklineError, TypeError) as refused:
            return {"refused": str(refused).replace(folder, "")}


def parquet_rows(folder: Path) -> list[dict[str, Any]]:
    """Every row that a sweep wrote."""
    import polars

    found = polars.concat([polars.read_parquet(shard) for shard in sorted(folder.rglob("*.parquet"))])
    return json.loads(json.dumps(found.to_dicts(), default=str))


def differences(
    before: Any,
    after: Any,
    where: str = "",
    *,
    rel: float = TOLERANCE,
    least: float = 1e-300,
    apart: Set[str] = VOLATILE,
) -> Iterator[str]:
    """What differs, a line each.

    Args:
        rel, least: relative and absolute difference that two numbers may have.
        apart: keys that are not compared.
    """
    further = {"rel": rel, "least": least, "apart": apart}
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            if key in apart:
                continue
            if key not in after or key not in before:
                yield f"{where}.{key}: {'is gone' if key in before else 'is new'}"
            else:
                yield from differences(before[key], after[key], f"{where}.{key}", **further)
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{where}: {len(before)} entries, now {len(after)}"
        for place, (one, other) in enumerate(zip(before, after, strict=False)):
            yield from differences(one, other, f"{where}[{place}]", **further)
    elif any(isinstance(one, bool) or not isinstance(one, int | float) for one in (before, after)):
        if type(before) is not type(after) or before != after:
            yield f"{where}: {str(before)[:200]!r}, now {str(after)[:200]!r}"
    elif not math.isclose(before, after, rel_tol=rel, abs_tol=least) and (before == before or after == after):
        yield f"{where}: {before!r}, now {after!r}"


def main() -> int:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("do", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="verbs to ask, with commas between them")
    given = parser.parse_args()
    only = set(given.only.split(",")) - {""}
    start, found = time.process_time(), {}
    for verb, asked, served in questions():
        if only and verb not in only:
            continue
        key = f"{verb} {json.dumps(asked)}{' served' if served else ''}"
        found[key] = answer(verb, asked, served)
        print(f"\r{len(found)} questions, {time.process_time() - start:.0f} CPU s", end="", file=sys.stderr)
    if not only or "sweep" in only:
        found["sweep"] = sweep_rows()
    print(file=sys.stderr)
    if given.do == "write":
        given.file.write_text(json.dumps(found, indent=0))
        refused = sum("refused" in one for one in found.values())
        print(f"{len(found)} answers, {refused} refusals, {given.file.stat().st_size / 1e6:.1f} MB")
        return 0
    stored = json.loads(given.file.read_text())
    moved = 0
    for key, after in found.items():
        lines = list(differences(stored.get(key), after))
        if lines:
            moved += 1
            print(
                key,
                *(f"  {line}" for line in lines[:12]),
                *([f"  … {len(lines)} in all"] if len(lines) > 12 else []),
                sep="\n",
            )
    print(f"{len(found) - moved} of {len(found)} answers are the same")
    return 1 if moved else 0


if __name__ == "__main__":
    sys.exit(main())
