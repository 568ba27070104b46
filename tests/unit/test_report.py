"""Reports: texts, the terminal plot, traces, on small inputs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from helpers import planned
from rackline import arch
from rackline.display import terminal, wording
from rackline.display.terminal import LogAxis, Series, log_plot
from rackline.hardware import cluster
from rackline.parallel import Deployment, Layout, precision
from rackline.passes import Batch, PassTime, calibration
from rackline.passes.fallback import best_stack
from rackline.report.explain_report import pass_sheet, resources_line
from rackline.report.exports import chrome_trace
from rackline.report.model_report import _checked
from rackline.report.plan_report import front_with_best, plan_report
from rackline.report.trust import trust
from rackline.search import Plan
from rackline.serving.workload import Workload
from rackline.system import Constraints


@pytest.fixture(scope="module")
def small_plan() -> Plan:
    rack = cluster("dgx-h100")
    return planned(
        arch.model("llama-3.1-8b"),
        rack,
        Workload(input_len=1000, output_len=200),
        calibration=calibration("auto", rack.chip),
        constraints=Constraints(tpot_s=0.02),
    )


@pytest.fixture(scope="module")
def small_pass() -> PassTime:
    model, rack = arch.model("llama-3.1-8b"), cluster("dgx-h100")
    deployment = Deployment(
        model=model,
        cluster=rack,
        layout=Layout(tp=2),
        precision=precision("bf16", model, rack.chip),
        calibration=calibration("auto", rack.chip),
    )
    return deployment.table().time(Batch(decode_sequences=8.0, context_len=1000.0))


def test_bar_is_monotone_and_never_overflows() -> None:
    lengths = [len(terminal.bar(step / 100, 10).rstrip()) for step in range(-5, 130)]
    assert lengths == sorted(lengths)
    assert max(lengths) == 10
    assert terminal.bar(1e-9, 10).strip(), "what is there is seen"


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "-"), (1e-9, "0.000"), (0.0123456, "12.3"), (0.9996, "1000"), (9.9999e-3, "10.0")]
)
def test_unit_writes_three_digits(value: float, text: str) -> None:
    assert wording.Unit.of(0.02).text(value) == text


def test_spread_keeps_both_ends() -> None:
    values = [float(v) for v in range(100)]
    picked = wording.spread_over(values, 12)
    assert picked[0] == 0
    assert picked[-1] == 99
    assert len(picked) == 12
    assert wording.spread_over([1.0, 2.0], 12) == [0, 1]


def test_log_axis_ticks_lie_inside() -> None:
    for values in ([1.0, 1.1], [0.003, 700.0], [5.0], [1e-9, 1e9]):
        axis = LogAxis.around(values)
        for most in (2, 5, 9):
            ticks = axis.ticks(most)
            assert all(axis.low <= tick <= axis.high for tick in ticks)
            assert len(ticks) <= most
        assert all(0 < axis.place(value) < 1 for value in values)


def plot_of(*series: Series, width: int = 60, x_line: float | None = None) -> list[str]:
    text = log_plot(
        series,
        width=width,
        height=10,
        x_title="x",
        y_title="y",
        x_text=lambda value: f"{value:g}",
        y_text=lambda value: f"{value:g}",
        x_line=x_line,
        x_line_name="limit",
    )
    return text.plain.splitlines()


def test_plot_puts_marks_where_they_belong() -> None:
    lines = plot_of(Series(x=[1.0, 100.0], y=[100.0, 1.0], name="ends", mark="◆"))
    rows = [index for index, line in enumerate(lines[1:11]) if "◆" in line]
    columns = [line.index("◆") for line in lines[1:11] if "◆" in line]
    assert rows[0] < rows[1], "the larger y is higher"
    assert columns[0] < columns[1], "the larger x is further right"
    assert all(len(line) <= 60 for line in lines)


def test_plot_of_one_point_and_a_limit() -> None:
    lines = plot_of(Series(x=[10.0], y=[1.0], name="front", joined=True), x_line=20.0)
    assert sum("┊" in line for line in lines) >= 10
    assert any("⠀" < character <= "⣿" for line in lines for character in line)


def test_plot_without_points_is_empty() -> None:
    assert plot_of(Series(x=[], y=[], name="none")) == []


def test_pass_table_shows_the_longest_row_first(small_pass: PassTime) -> None:
    names = pass_sheet(small_pass, "decode").data()["name"]
    first = max((row for row in small_pass.rows if row.used), key=lambda row: row.seconds)
    assert names[0] == first.name
    assert "alone" in resources_line(small_pass).plain


def test_front_holds_the_best_once_and_both_ends(small_plan: Plan) -> None:
    rows = front_with_best(small_plan, 8)
    assert sum(is_best for _, is_best in rows) == 1
    speeds = [candidate.tokens_per_s_per_user for candidate, _ in rows]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[0] == small_plan.pareto[0].tokens_per_s_per_user
    assert 8 <= len(rows) <= 9


def test_report_is_built_for_any_width(small_plan: Plan) -> None:
    for width in (60, 80, 100, 140, 200):
        console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
        console.print(plan_report(small_plan, None, width=width, elapsed_s=0.1))
        text = console.export_text()
        console.file.close()
        assert max(len(line) for line in text.splitlines()) <= width
        assert "llama-3.1-8b on dgx-h100" in text


@pytest.mark.parametrize("policy", ["serial", "overlap", "blackboard"])
def test_trace_ends_with_the_pass(policy: str) -> None:
    model, rack = arch.model("llama-3.1-8b"), cluster("dgx-h100")
    deployment = Deployment(
        model=model,
        cluster=rack,
        layout=Layout(tp=2),
        precision=precision("bf16", model, rack.chip),
        calibration=calibration("unit" if policy == "blackboard" else "auto", rack.chip),
    )
    time = deployment.table().time(Batch(decode_sequences=8.0, context_len=1000.0), policy)  # type: ignore[arg-type]
    events = [e for e in chrome_trace({"pass": time})["traceEvents"] if e["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in events) == pytest.approx(time.seconds * 1e6)
    assert all(e["dur"] > 0 and e["ts"] >= 0 for e in events)
    by_thread: dict[int, float] = {}
    for event in sorted(events, key=lambda e: (e["tid"], e["ts"])):
        assert event["ts"] >= by_thread.get(event["tid"], 0.0) - 1e-6, "events of a thread do not overlap"
        by_thread[event["tid"]] = event["ts"] + event["dur"]


def deployed(on: str, name: str, layout: Layout) -> tuple[Deployment, PassTime]:
    model, rack = arch.model("llama-3.1-8b"), cluster(on)
    deployment = Deployment(
        model=model,
        cluster=rack,
        layout=layout,
        precision=precision("bf16", model, rack.chip),
        calibration=calibration(name, rack.chip),
    )
    return deployment, deployment.table().time(Batch(decode_sequences=8.0, context_len=1000.0))


@pytest.mark.parametrize(
    ("on", "name", "text"),
    [
        ("dgx-h100", "trtllm", "calibration trtllm, measured on h100-sxm; 2 of 8 rows fall back to all chips"),
        ("dgx-h100", "unit", "calibration unit: ideal roofline, a bound and not a prediction"),
        ("dgx-h100", "generic", "generic numbers: not those measured on h100-sxm, expect tens of percent"),
        ("tpu-v5e-16", "auto", "generic numbers: nothing was measured on tpu-v5e, expect tens of percent"),
        (
            "h800-8",
            "vllm",
            "calibration vllm: not measured on h800-sxm, expect tens of percent; "
            "8 of 8 rows fall back: 6 to the hopper generation, 2 to all chips",
        ),
        (
            "arc-pro-b60-8",
            "trtllm",
            "calibration trtllm: not measured on arc-pro-b60, expect tens of percent; "
            "8 of 8 rows fall back: 6 to vllm on this chip, 2 to all chips",
        ),
    ],
)
def test_footer_says_whose_numbers_these_are(on: str, name: str, text: str) -> None:
    deployment, time = deployed(on, name, Layout())
    assert trust(deployment.calibration, deployment.cluster.chip, time.rows).plain == text


def test_footer_of_auto_names_the_stack_with_most_measured_on_the_chip() -> None:
    """Without a model to choose the stack for; what is measured where changes with the tables that are read."""
    deployment, time = deployed("dgx-h100", "auto", Layout())
    chip = deployment.cluster.chip
    line = trust(deployment.calibration, chip, time.rows).plain
    assert line.startswith(f"calibration {best_stack(chip)}, measured on h100-sxm")


def test_footer_counts_the_rows_that_fall_back() -> None:
    deployment, time = deployed("dgx-h100", "trtllm", Layout(tp=2))
    used = [row for row in time.rows if row.used and row.seconds > 0]
    fallen = sum(row.origin.startswith("fallback: ") for row in used)
    assert 0 < fallen < len(used)
    chip = deployment.cluster.chip
    line = trust(deployment.calibration, chip, time.rows).plain
    assert f"{fallen} of {len(used)} rows fall back" in line
    assert "1 to what stacks share on this chip" in line, "NCCL is measured once, not per stack"
    # a row of two passes counts once; without rows nothing is counted
    assert trust(deployment.calibration, chip, (*time.rows, *time.rows)).plain == line
    assert trust(deployment.calibration, chip).plain == "calibration trtllm, measured on h100-sxm"


def test_footer_of_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'name = "mine"\nfull_name = "Mine"\nstack = "any"\ndescription = "guessed"\nevidence = "assumed"\n'
        'step_policy = "serial"\n[[operation]]\nclass = "gemm"\ndtype = "*"\noverhead_s = 0.0\neta_compute = 1.0\n'
        'eta_memory = 1.0\n[[sources]]\nfields = ["*"]\nkind = "assumed"\ncitation = "made up"\n'
    )
    deployment, time = deployed("dgx-h100", str(file), Layout())
    line = trust(deployment.calibration, deployment.cluster.chip, time.rows).plain
    assert line == "calibration mine (assumed): guessed; expect tens of percent"


@pytest.mark.parametrize("width", [80, 120, 150])
def test_rows_add_up_on_screen(small_pass: PassTime, width: int) -> None:
    """The longest of compute, HBM and link, the fixed part and the rest are the printed total, to its rounding."""
    console, names = Console(width=width), ("compute", "HBM", "link", "fixed", "rest", "total")
    for sheet in (pass_sheet(small_pass, "decode", small_pass), pass_sheet(small_pass, "decode")):
        table = sheet.table(width)
        with console.capture() as printed:
            console.print(table)
        cells = {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}
        rows = [row for row in zip(*(cells[name] for name in names), strict=True) if all(row) and "unused" not in row]
        assert len(rows) >= 4
        for row in rows:
            assert all(cell.strip() in printed.get() for cell in row)
            compute, hbm, links, fixed, rest, total = (0.0 if cell.strip() == "-" else float(cell) for cell in row)
            parts = (max(compute, hbm, links), fixed, rest)
            assert sum(parts) == pytest.approx(total, abs=0.002 + 0.005 * sum(parts))


@pytest.mark.parametrize(
    ("total_size", "expected"),
    [(1.02e9, "\n1.00 GB by headers, 1.02 GB by the index (-1.961%)"), (0.0, "(+0.000%)"), (None, None)],
)
def test_a_checkpoint_is_checked_against_its_index_where_it_has_one(
    total_size: float | None, expected: str | None
) -> None:
    part, types = SimpleNamespace(kind="experts", counted=10, stored=8), {"experts": {"bf16": 6, "fp8": 2}}
    check: Any = SimpleNamespace(
        parts=[part], counted=10, stored=8, difference=0.25, tower=0, where="model.safetensors", stored_bytes=1e9,
        total_size=total_size, types=types,
    )  # fmt: skip
    caption = _checked(check).caption  # type: ignore[union-attr]
    assert _checked(check).as_text()["rows"][0] == ["experts", "10.0", "8.00", "+2", "bf16 75%, fp8 25%"]  # type: ignore[union-attr]
    assert caption.startswith("model.safetensors; scales of quantised weights left out")
    assert (expected in caption) if expected else ("by the index" not in caption)
