"""The commands as a person or a program calls them: what they print, and the keys other programs rely on."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from helpers import call, call_json, run_command

pytestmark = pytest.mark.usefixtures("answers_once")

HEADLINE = ["plan", "deepseek-v3", "--on", "gb200-nvl72", "--input", "4k", "--output", "1k"]
LIMITS = ["--tpot", "30ms", "--ttft", "2s"]
ONE_STACK = ["--calibration", "vllm"]  # where nothing is asked of stacks; by default all are searched
COMMAND = Path(sys.executable).with_name("rackline")
MOST_MODULES = 350  # 253 are loaded for the help


@pytest.fixture(scope="module")
def headline(answers_once: object) -> dict[str, Any]:
    """The README's plan as JSON."""
    ran = run_command([*HEADLINE, *LIMITS, "--full", "--json"], Path.cwd())
    assert (ran.status, ran.err) == (0, "")
    return json.loads(ran.out)


def test_headline_plan_has_the_keys_that_programs_rely_on(headline: dict[str, Any]) -> None:
    assert headline["candidates_evaluated"] >= 20_000  # in the checkpoint's own data types
    assert headline["combinations"] >= 500
    best = headline["best"]
    for low_high, predicted in ((best["intervals"][name], best[name]) for name in ("tpot_s", "ttft_s")):
        assert low_high["low"] < predicted < low_high["high"]
    for key in (
        "layout",
        "batch_size",
        "num_chips",
        "tpot_s",
        "ttft_s",
        "output_tokens_per_s_per_chip",
        "usd_per_mtok_input",
        "usd_per_mtok_output",
        "usd_per_mtok_output_all_in",
        "memory",
        "binding",
        "serving",
        "prefill_pool",
        "decode_pool",
    ):
        assert key in best, key
    assert headline["pareto"]
    assert headline["rejected"]


def test_headline_plan_keeps_its_limits_and_adds_up(headline: dict[str, Any]) -> None:
    best = headline["best"]
    assert 0 < best["tpot_s"] <= 0.030
    assert 0 < best["ttft_s"] <= 2.0
    assert best["num_chips"] <= 72
    layouts = [best[pool]["layout"] for pool in ("prefill_pool", "decode_pool") if best[pool]] or [best["layout"]]
    chips = sum(one["tp"] * one["attention_dp"] * one["pp"] * one["cp"] * one["dp"] for one in layouts)
    assert chips == best["num_chips"]
    rate = best["requests_per_s"] * 1000 / best["num_chips"]
    assert rate == pytest.approx(best["output_tokens_per_s_per_chip"], rel=1e-6)
    memory = best["memory"]
    held = sum(memory[f"{kind}_bytes"] for kind in ("weights", "kv_cache", "activations", "runtime", "free"))
    assert held == pytest.approx(memory["usable_bytes"])
    # all cost of an hour goes to the prompts and the outputs
    all_in = best["usd_per_mtok_output"] + best["usd_per_mtok_input"] * 4000 / 1000
    assert all_in == pytest.approx(best["usd_per_mtok_output_all_in"], rel=1e-6)


def test_headline_pareto_front_is_a_front(headline: dict[str, Any]) -> None:
    speeds = [point["tokens_per_s_per_user"] for point in headline["pareto"]]
    costs = [point["usd_per_mtok_output_all_in"] for point in headline["pareto"]]
    assert speeds == sorted(speeds, reverse=True)
    assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize("width", [80, 140])
def test_headline_plan_for_people(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, headline: dict[str, Any]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = call(capsys, *HEADLINE, *LIMITS, "--full")
    assert max(len(line) for line in text.splitlines()) <= width
    for part in (
        "deepseek-v3 on gb200-nvl72",
        f"{headline['best']['batch_size']:,.0f}",
        "served: 40,000 requests that arrive at random",
        "p99 of tpot ≤ 30.0 ms",
        "time per output token",
        "output tokens/s per chip",
        "$ per M output tokens",
        "KV cache",
        "decode step",
        "prefill pass",
        "attention_decode_mla",
        "binds",
        "distance from the floors",
        "Pareto front",
        "◆",
        "tpot limit",
        "nearest rejected candidates",
        "calibration sglang, measured on gb200",
    ):
        assert part in text, part
    assert re.search(r"[\u2801-\u28ff]", text), "the plot has no dots"
    looked = re.search(r"considered ([\d,]+) candidates", text)
    assert looked
    assert int(looked[1].replace(",", "")) == headline["candidates_evaluated"]
    assert "…" not in "".join(line for line in text.splitlines() if "Pareto" in line or "tok/s" in line)


def test_set_changes_the_chip_and_price_changes_the_cost(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["plan", "llama-3.1-8b", "--on", "dgx-h100", "--chips", "2", "--input", "1k", "--output", "50"]
    base += ONE_STACK
    plain = call_json(capsys, *base, "--price", "2")["best"]
    dearer = call_json(capsys, *base, "--price", "4")["best"]
    faster = call_json(capsys, *base, "--price", "2", "--set", "hbm_bytes_per_s=20TB/s")["best"]
    assert dearer["usd_per_mtok_output_all_in"] == pytest.approx(2 * plain["usd_per_mtok_output_all_in"])
    assert faster["usd_per_mtok_output_all_in"] < plain["usd_per_mtok_output_all_in"]


def test_layout_fixes_the_parts_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["plan", "llama-3.1-8b", "--on", "dgx-h100", "--input", "1k", "--output", "50", *ONE_STACK]
    data = call_json(capsys, *base, "--layout", "tp=4")
    assert data["best"]["layout"]["tp"] == 4
    assert len(data["pareto"]) > 1
    assert {point["layout"]["tp"] for point in data["pareto"]} == {4}
    free = call_json(capsys, *base)
    assert len({point["layout"]["tp"] for point in free["pareto"]}) > 1
    assert data["candidates_evaluated"] < free["candidates_evaluated"]


def test_cluster_without_a_price_counts_chip_hours(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["plan", "llama-3.1-8b", "--on", "h20-8", "--input", "1k", "--output", "200"]
    assert call_json(capsys, *base)["priced"] is False
    text = " ".join(call(capsys, *base).split())
    assert "costs are chip-hours" in text
    assert "chip-hours per M output" in text
    assert "$ per M" not in text


def test_nothing_fits_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["plan", "deepseek-v3", "--on", "dgx-h100", "--input", "4k", "--output", "1k"]
    data = call_json(capsys, *base)
    assert data["best"] is None
    assert "GB" in data["reason"]
    assert data["need"]["cluster"]
    assert data["need"]["num_chips"] >= 8
    text = call(capsys, *base)
    assert "Nothing fits" in text
    assert data["need"]["cluster"] in text


def test_limit_that_nothing_keeps_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    data = call_json(
        capsys, "plan", "llama-3.1-8b", "--on", "dgx-h100", "--input", "4k", "--output", "1k", "--tpot", "1us"
    )
    assert data["best"] is None
    assert "fastest tpot" in data["reason"]
    assert data["need"] is None
    assert data["pareto"], "what could be reached is still shown"


def test_aggregate_model_has_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    text = call(capsys, "plan", "lecture-frontier", "--on", "gb200-nvl72", "--input", "4k", "--output", "1k")
    assert "lecture-frontier on gb200-nvl72" in text


@pytest.mark.parametrize("ending", ["svg", "html"])
def test_plot_is_written(ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / f"front.{ending}"
    base = ["plan", "llama-3.1-8b", "--on", "dgx-h100", "--input", "1k", "--output", "200", "--tpot", "20ms"]
    call(capsys, *base, *ONE_STACK, "--plot", str(file))
    text = file.read_text(encoding="utf-8")
    if ending == "svg":
        root = ElementTree.fromstring(text)
        assert root.tag.endswith("svg")
        assert len(root.findall(".//{*}path")) > 3
    else:
        data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
        assert data
        assert json.loads(data[1])["spec"]["data"]["values"]


EXPLAIN = ["explain", "deepseek-v3", "--on", "gb200-nvl72", "--batch", "512", "--context", "4k"]


def test_explain_rows_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    data = call_json(capsys, *EXPLAIN, "--layout", "attention_dp=8,ep=8")
    assert data["sequences_per_rank"] == 64
    assert data["features"]["group_tokens"] == 512
    assert sum(row["seconds"] for row in data["rows"]) == pytest.approx(data["seconds"] - data["host_s"])
    assert data["blackboard"]["seconds"] < data["seconds"]
    for row in data["rows"]:
        assert row["formula"]
        for resource, terms in row["coefficients"].items():
            total = sum(value * data["features"].get(name, 0.0) for name, value in terms.items())
            assert total == pytest.approx(row["amounts"][resource]), f"{row['name']} {resource}"


@pytest.mark.parametrize("width", [80, 140])
def test_explain_for_people(width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = call(capsys, *EXPLAIN, "--layout", "attention_dp=8,ep=8")
    assert max(len(line) for line in text.splitlines()) <= width
    for part in (
        "numbers put in",
        "blackboard",
        "binds",
        "90 % of measured passes",
        "where amounts and numbers come from",
        "× experts_touched",
        "fallback: generic, all chips",
        "calibration sglang, measured on gb200",
    ):
        assert part in text, part
    assert re.search(r"^ experts  .*(\n   .*)*\n   measured: sglang, gb200, fp8_block", text, re.M)


def test_explain_says_whose_numbers_time_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["explain", "llama-3.1-70b", "--on", "dgx-h100", "--batch", "8", "--context", "1k", "--layout", "tp=8"]
    for name in ("trtllm", "vllm", "sglang"):
        data = call_json(capsys, *base, "--calibration", name)
        assert data["calibration"] == name
        rows = {row["name"]: (row["evidence"], row["origin"]) for row in data["rows"] if row["used"]}
        assert rows["qkv"] == ("measured", f"{name}, h100-sxm")
        assert rows["norm_rope_activation"] == ("assumed", "fallback: generic, all chips")
    chosen = call_json(capsys, *base)
    assert chosen["defaults"][0] == f"engine {chosen['calibration']} (--engine)"
    assert call_json(capsys, *base, "--calibration", chosen["calibration"])["seconds"] == chosen["seconds"]
    unit = call(capsys, *base, "--calibration", "unit")
    assert "where the numbers come from" not in unit
    assert "a bound and not a prediction" in unit


def test_plan_takes_the_calibration_of_the_chip(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["plan", "llama-3.1-8b", "--input", "1k", "--output", "200", "--layout", "tp=1"]
    seconds = {}
    usd = {}
    for name in ("auto", "trtllm", "sglang", "vllm", "generic"):
        data = call_json(capsys, *base, "--on", "dgx-h100", "--calibration", name, "--chips", "1")
        chosen = data["calibration"]
        assert chosen == name or name == "auto"
        seconds[name] = data["best"]["decode"]["seconds"] / data["best"]["batch_size"]
        usd[name] = data["best"]["usd_per_mtok_output_all_in"]
        if name == "auto":
            default = chosen
    assert seconds["auto"] == seconds[default]
    assert usd[default] <= 1.15 * min(usd[name] for name in ("trtllm", "sglang", "vllm"))
    assert len(set(seconds.values())) == 4
    text = " ".join(call(capsys, *base, "--on", "tpu-v5e-16", "--precision", "int8").split())
    assert "calibration xla (derived): Dense products as XLA compiles them for TPUs" in text


def test_explain_takes_the_smallest_layout_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["explain", "llama-3.1-70b", "--on", "dgx-h100", "--batch", "4", "--context", "1k"]
    data = call_json(capsys, *base)
    assert data["fits"]
    layout = data["layout"]
    assert layout["tp"] * layout["pp"] == 2, "141 GB of weights in bf16 and some KV on chips of 76 usable GB"
    assert "layout not given" in call(capsys, *base)


def test_explain_prefill_only(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["explain", "llama-3.1-8b", "--on", "dgx-h100", "--context", "1", "--prefill", "4k"]
    data = call_json(capsys, *base, "--batch", "0")
    assert data["prefill_tokens"] == 4000
    assert data["binds"] == "compute"


def test_explain_trace_has_the_same_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pass.json"
    data = call_json(capsys, *EXPLAIN, "--layout", "tp=8,ep=8", "--trace", str(file))
    events = json.loads(file.read_text())["traceEvents"]
    rows = [event for event in events if event["ph"] == "X" and event["pid"] == 1]
    end = max(event["ts"] + event["dur"] for event in rows)
    assert end == pytest.approx(data["seconds"] * 1e6)
    threads = {event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 2}
    assert {"compute", "hbm"} <= threads, "the blackboard has a thread for each resource"


def test_fit_counts_requests(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["fit", "llama-3.1-70b", "--on", "dgx-h100", "--context", "32k"]
    data = call_json(capsys, *base)
    assert data["fits"]
    first = data["rows"][0]
    assert first["total_concurrency"] * first["kv_bytes_per_sequence"] <= 8 * first["kv_room_bytes"]
    more = call_json(capsys, *base, "--concurrency", str(first["total_concurrency"] + 1))
    assert not more["fits"]
    assert str(first["total_concurrency"]) in more["reason"]
    assert "longest" in call(capsys, *base)


@pytest.mark.parametrize("kind", ["chips", "clusters", "models"])
@pytest.mark.parametrize("width", [80, 140])
def test_lists_fit_the_terminal(
    kind: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = call(capsys, kind)
    assert max(len(line) for line in text.splitlines()) <= width
    names = [record["name"] for record in call_json(capsys, kind)[kind]]
    assert len(names) >= 12
    assert all(name in text for name in names)


def test_one_chip_names_the_source_of_each_number(capsys: pytest.CaptureFixture[str]) -> None:
    text = call(capsys, "chips", "h100", "--set", "hbm_bytes_per_s=20TB/s")
    assert "20.0 TB/s" in text
    assert "set by the user" in text
    assert call_json(capsys, "chips", "h100", "--set", "hbm_bytes_per_s=20TB/s")["hbm_bytes_per_s"] == 20e12


def test_one_model_by_hf_id_and_by_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = call_json(capsys, "models", "meta-llama/Llama-3.1-70B")
    assert data["name"] == "llama-3.1-70b"
    assert sum(data["total_params_by_kind"].values()) == data["total_params"]
    assert data["kv_bytes_per_token"]["bf16"]["total"] == 327_680
    flop = [entry["flop"] for entry in data["flop_per_token"]]
    assert flop == sorted(flop)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "torch_dtype": "bfloat16",
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    small = call_json(capsys, "models", str(file), "--set", "num_layers=3")
    assert small["architecture"]["num_layers"] == 3
    assert "parameters" in call(capsys, "models", str(file))


def test_help_is_quick_and_light() -> None:
    code = (
        "import sys\n"
        "from rackline.cli.main import run\n"
        "status = run(['--help'])\n"
        "print(status, 'numpy' in sys.modules, 'scipy' in sys.modules, len(sys.modules), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1200)
    status, numpy, scipy, modules = result.stderr.split()
    assert (status, numpy, scipy) == ("0", "False", "False")
    assert int(modules) < MOST_MODULES, "0.5 s are promised on an idle machine"
    for command in ("plan", "explain", "fit", "chips", "clusters", "models", "compare", "memory", "tiers", "price"):
        assert command in result.stdout


@pytest.mark.parametrize("command", ["plan", "explain", "fit", "chips", "clusters", "models"])
def test_each_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = call(capsys, command, "--help")
    assert "Examples:" in text
    assert f"rackline {command}" in text
    assert "--json" in text


def test_closed_pipe_is_quiet() -> None:
    with subprocess.Popen([COMMAND, "models", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.read(10)
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(timeout=1200) == 0
    assert errors == b""


def test_terminal_without_unicode_gets_an_answer() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = subprocess.run([COMMAND, "models", "llama-3.1-8b"], capture_output=True, env=environment, timeout=1200)
    assert result.returncode == 0, result.stderr
    assert b"llama-3.1-8b" in result.stdout


def test_numbers_of_json_are_finite(headline: dict[str, Any]) -> None:
    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)
        elif isinstance(value, float):
            assert math.isfinite(value)

    walk(headline)
