"""What servers said at their start that they had left for KV, beside our count.

`kv_capacity.json` holds the lines, each with its source; "use" says which ones fixed the numbers of a stack.
`bench/refresh_docs.py --only tables/memory` writes the table of docs/accuracy/memory.md.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import rackline as rl
from rackline.arch import Model, build_model
from rackline.parallel import ServerMemory
from rackline.parallel.memory import kv_room_bytes, kv_size
from rackline.serving.stack import stack
from rackline.validation.resolve import architecture_record
from scripts import load_script

GIB = 2**30
LINES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("kv_capacity.json").read_text(encoding="utf-8"))
PAGE = Path(__file__).resolve().parents[2] / "docs" / "accuracy" / "memory.md"
BEGIN, END = "<!-- start-up lines: begin -->", "<!-- start-up lines: end -->"
# Lines that are not hit, with predicted over published and why.
MISSED = {
    "h100x4-qwen3-235b-fp8": (1.19, "1.5 GiB too much; the server also ran a KV connector with buffers of its own"),
    "a100-80gb-x4-llama-2-70b": (1.48, "version 0.2.5 counted the highest use of its allocator on all ranks as peak"),
}


@cache
def predicted(index: int) -> float:
    """KV tokens, or GiB of KV where the line gives bytes."""
    line = LINES[index]
    inline = line.get("architecture")
    name, chip = line["model"], rl.chip(line["chip"])
    model = build_model(architecture_record(inline, name, line["id"])) if inline else rl.model(name)
    tp = line["tp"]
    layout = rl.Layout(tp=tp, moe_tp=tp) if isinstance(model, Model) and model.is_moe else rl.Layout(tp=tp)
    precision = rl.precision(line["precision"], model, chip)
    of = stack(line["stack"], version=line["stack_version"], chip=chip)
    server = ServerMemory(
        memory_fraction=line["memory_fraction"],
        fraction_of=of.memory.fraction_of,
        batched_tokens=line["max_num_batched_tokens"],
        max_num_seqs=line["max_num_seqs"],
        context_bytes=of.memory.context_bytes,
        runtime_bytes=of.memory.runtime_bytes,
        communication_bytes=of.memory.communication_bytes,
        graph_bytes=of.memory.graph_bytes,
        logit_bytes=of.memory.logit_bytes,
    )
    room = float(kv_room_bytes(model, layout, precision, chip, server)[0])  # type: ignore[arg-type]
    if "kv_gib" in line["measured"]:
        return room / GIB
    each = float(kv_size(model, layout, precision).in_tokens(server.block_size)[0])
    return room // (each * server.block_size) * server.block_size


def published(index: int) -> float:
    """As the line says it."""
    (value,) = LINES[index]["measured"].values()
    return float(value)


def test_enough_lines_that_nothing_was_fitted_to() -> None:
    tested = [line for line in LINES if line["use"] == "test" and line["id"] not in MISSED]
    assert len(tested) >= 8
    assert {line["stack"] for line in tested} == {"vllm", "sglang", "trtllm"}
    assert any(line["tp"] > 1 for line in tested)
    assert len({line["chip"] for line in tested}) >= 5


@pytest.mark.parametrize("index", range(len(LINES)), ids=[line["id"] for line in LINES])
def test_within_5_percent(index: int) -> None:
    ratio = predicted(index) / published(index)
    known, _ = MISSED.get(LINES[index]["id"], (1.0, ""))
    assert ratio == pytest.approx(known, abs=0.05 if known == 1.0 else 0.01)


def table() -> str:
    """The Markdown table, one row per line."""
    rows = [
        "| model | chips | stack | published | predicted | off | use | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for index, line in enumerate(LINES):
        ours, theirs = predicted(index), published(index)
        given = "{:,.2f} GiB" if "kv_gib" in line["measured"] else "{:,.0f} tokens"
        off = f"{100 * (ours / theirs - 1):+.1f} %"
        rows.append(
            f"| {line['model']} {line['precision']} | {line['tp']} {line['chip']} | {line['stack']} "
            f"{line['stack_version']} | {given.format(theirs)} | {given.format(ours)} | {off} "
            f"| {line['use']} | {line['source']} |"
        )
    return "\n".join([*rows, "", *(f"- {name}: {why}." for name, (_, why) in MISSED.items())])


def test_the_page_shows_the_table() -> None:
    shown = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()
    shape = load_script("shown").shape
    assert shape(shown) == shape(table()), "run bench/refresh_docs.py --only tables/memory"
