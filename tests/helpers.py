"""Builders that the tests of the engine share; each named object is built once."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rackline import arch
from rackline.catalog import ModelRecord
from rackline.cli.main import run
from rackline.hardware import Cluster, cluster as load_cluster
from rackline.parallel import (
    Deployment,
    Layout,
    LayoutGrid,
    Precision,
    Routing,
    build_table,
    enumerate_layouts,
    expert_law,
    parse_layout,
    precision,
)
from rackline.passes import UNIT, Calibration, PassTable, calibration as load_calibration
from rackline.passes.features import Array
from rackline.pricing import TokenCosts
from rackline.search import Plan, SearchSpace, plan
from rackline.serving.workload import Workload
from rackline.system import Constraints, Demand, System
from rackline.training.runs import Runs, TrainLayout
from rackline.training.stack import IDEAL, TrainingStack
from rackline.training.system import MicroBatch, TrainingSystem


@cache
def model(name: str) -> Any:
    """A model of the catalogue."""
    return arch.model(name)


def micro_batch(
    model: Any,
    layouts: Runs | Sequence[TrainLayout],
    on: Cluster,
    *,
    seq_len: int,
    stack: TrainingStack | str = IDEAL,
    kernels: Calibration | None = None,
    batch: int = 64,
    **more: Any,
) -> MicroBatch:
    """A micro-batch of some layouts; `kernels` in place of those of the stack."""
    more.setdefault("mtp_layers", 0)
    system = TrainingSystem.of(model, on, stack=stack, global_batch_sequences=batch, seq_len=seq_len, **more)
    if kernels is not None:
        system = replace(system, calibration=kernels, cluster=on.without_latency() if kernels.is_unit else on)
    runs = layouts if isinstance(layouts, Runs) else Runs.of(layouts)
    return MicroBatch(system=system, runs=runs)


@cache
def cluster(name: str) -> Cluster:
    """A cluster of the catalogue."""
    return load_cluster(name)


@cache
def numbers(name: str, on: str = "") -> Calibration:
    """A calibration of the catalogue for the chip of a cluster (for all chips without one), or the unit one."""
    if name == "unit":
        return UNIT
    return load_calibration(name, cluster(on).chip if on else None)


@cache
def layouts(model_name: str, num_chips: int) -> tuple[Layout, ...]:
    """All layouts of a model on at most that many chips."""
    return tuple(enumerate_layouts(model(model_name), num_chips))


@cache
def types(label: str, model_name: str, cluster_name: str) -> Precision:
    """Data types of a label for a model on the chip of a cluster."""
    return precision(label, model(model_name), cluster(cluster_name).chip)


def deploy(
    model_name: str,
    layout: str | Layout = "tp=1",
    *,
    on: str = "gb200-nvl72",
    label: str = "bf16",
    calibration: str = "generic",
    routing: Routing | None = None,
) -> Deployment:
    """A deployment by names."""
    chosen = parse_layout(layout, model(model_name)) if isinstance(layout, str) else layout
    return Deployment(
        model=model(model_name),
        cluster=cluster(on),
        layout=chosen,
        precision=types(label, model_name, on),
        calibration=numbers(calibration, on),
        routing=routing or Routing(),
    )


@cache
def grid_table(
    model_name: str, on: str, num_chips: int, label: str = "bf16", calibration: str = "generic"
) -> PassTable:
    """The table of all layouts of a model on at most that many chips of a cluster."""
    grid = LayoutGrid.of(list(layouts(model_name, num_chips)))
    law = expert_law(model(model_name), grid, Routing())
    return build_table(
        model(model_name),
        cluster(on),
        grid,
        types(label, model_name, on),
        numbers(calibration, on),
        Routing(),
        experts=law,
    )


def record(data: dict[str, Any]) -> ModelRecord:
    """A model record from plain data, with one source for all of its numbers."""
    sources = [{"fields": ["*"], "kind": "assumed", "citation": "made up for a test"}]
    filled = {"full_name": data["name"], **data, "sources": sources}
    return ModelRecord.model_validate(filled, strict=False)


def gqa_model(**changes: Any) -> Any:
    """A small dense model; keyword arguments replace keys of the architecture."""
    architecture: dict[str, Any] = {
        "num_layers": 4,
        "d_model": 512,
        "vocab_size": 1024,
        "attention": {"kind": "gqa", "num_q_heads": 8, "num_kv_heads": 2, "head_dim": 64},
        "ffn": {"kind": "swiglu", "d_ff": 1024},
    }
    architecture.update(changes)
    return arch.build_model(record({"name": "small", "architecture": architecture}))


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Standard output of a command that must succeed."""
    status = run(list(arguments))
    out, err = capsys.readouterr()
    assert status == 0, err
    assert err == ""
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a command that ran in this process returned and wrote."""

    status: int
    out: str
    err: str


def run_command(words: Sequence[str], folder: Path, *, colour: bool = False) -> Ran:
    """Run a command of rackline as if in a process of its own that began in a folder and wrote into a pipe."""
    before, place = dict(os.environ), Path.cwd()
    if colour:
        os.environ |= {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    else:
        os.environ["NO_COLOR"] = "1"
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            status = run(list(words))
    finally:
        os.chdir(place)
        os.environ.clear()
        os.environ |= before
    return Ran(status=status, out=out.getvalue(), err=err.getvalue())


def complaint_of(ran: Ran, longest: int = 400) -> str:
    """Return why an outcome is neither a clear answer nor a clear refusal, or nothing.

    Args:
        longest: the most characters that a message may have.
    """
    lines = [line for line in ran.err.splitlines() if line.strip()]
    if "Traceback" in ran.err or ran.status not in (0, 1, 2):
        return ran.err[-500:]
    if ran.status < 2:
        return "NaN or infinity" if re.search(r"\b(NaN|Infinity)\b", ran.out) else ""
    if not lines and re.search(r'"error": ".+"', ran.out):  # `ask` answers the other questions of the file
        return ""
    return "" if len(lines) == 1 and len(lines[0]) <= longest else f"{len(lines)} lines: {ran.err[:500]}"


def call_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What a command prints with --json, which holds neither NaN nor infinities."""
    return json.loads(call(capsys, *arguments, "--json"), parse_constant=lambda name: pytest.fail(f"JSON holds {name}"))


# A language model with a tower, like Qwen3-VL-2B.
VISION_CONFIG: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "dtype": "bfloat16",
    "text_config": {
        "model_type": "qwen3_vl_text",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "vocab_size": 151936,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "vision_config": {
        "depth": 24,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_heads": 16,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "out_hidden_size": 2048,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [5, 11, 17],
    },
}


def relative_error(values: Array) -> float:
    """Standard error of the mean over the mean, from twenty batches."""
    means = np.array([part.mean() for part in np.array_split(values, 20)])
    return float(means.std(ddof=1) / np.sqrt(20.0) / means.mean())


def flags_of(words: tuple[str, ...]) -> list[tuple[str, str | None]]:
    """(flag, value or None) of a command."""
    found: list[tuple[str, str | None]] = []
    for index, word in enumerate(words):
        if word.startswith("--"):
            after = words[index + 1] if index + 1 < len(words) else "--"
            found.append((word, None if after.startswith("--") else after))
    return found


def flags_of_engines() -> dict[str, dict[str, dict[str, Any]]]:
    """Tables of the flags that argument parsers of engines take, by engine and version (`bench/engine_flags.py`)."""
    return {name: tables for name, tables in flag_tables().items() if name in ("vllm", "sglang")}


def flag_tables() -> dict[str, dict[str, dict[str, Any]]]:
    """The same of engines, routers and the commands of TensorRT-LLM."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for path in sorted((Path(__file__).parent / "data" / "engine_flags").glob("*.json")):
        table = json.loads(path.read_text(encoding="utf-8"))
        found.setdefault(table["engine"], {})[table["version"]] = table["flags"]
    return found


def assert_parses(words: tuple[str, ...], flags: dict[str, Any], engine: str) -> None:
    """Each flag of a command is one of the engine's, takes a value where it has one, and one of its choices."""
    for flag, value in flags_of(words):
        assert flag in flags, f"{engine} has no {flag}: {' '.join(words)}"
        assert flags[flag]["value"] == (value is not None), flag
        assert not flags[flag]["choices"] or value in flags[flag]["choices"], (flag, value)


def system(
    model_name: str,
    *,
    on: str = "gb200-nvl72",
    label: str | None = "bf16",
    calibration: str = "generic",
    routing: Routing | None = None,
) -> System:
    """A system by names, in one precision; in all that the chip supports without a label."""
    return System.of(
        model(model_name),
        cluster(on),
        calibration=numbers(calibration, on),
        precisions=None if label is None else [types(label, model_name, on)],
        routing=routing,
    )


def planned(
    of: Any,
    on: Cluster,
    workload: Workload,
    *,
    calibration: Calibration,
    precisions: Sequence[Precision] | None = None,
    routing: Routing | None = None,
    constraints: Constraints | None = None,
    search_space: SearchSpace | None = None,
    **more: Any,
) -> Plan:
    """The plan of a model on a cluster; `more` goes to `rackline.search.plan`."""
    serves = System.of(of, on, calibration=calibration, precisions=precisions, routing=routing)
    return plan(serves, Demand(workload=workload, limits=constraints or Constraints()), search_space, **more)


def token_costs(
    model_name: str, layout: str, *, on: str = "gb200-nvl72", label: str = "bf16", calibration: str = "generic"
) -> TokenCosts:
    """Costs of a deployment by names, with experts chosen uniformly."""
    serves = system(model_name, on=on, label=label, calibration=calibration, routing=Routing())
    return TokenCosts.of(serves, parse_layout(layout, model(model_name)))
