"""The whole measurement: device, rates, passes, fit, the file, and what was not fitted."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from rackline.display.axes import SERIES, Measure, colour, hovered, linear_axis, log_axis
from rackline.display.column import Column, Sheet
from rackline.display.figure import Figure
from rackline.errors import InputError, unknown_name
from rackline.files import write_text
from rackline.hardware import Chip, Cluster, FabricLevel, cluster
from rackline.lab.engine import WORK_KINDS, Engine, MeasureSetup, Work, installable, process_engine
from rackline.lab.fitted import (
    Compared,
    Fit,
    Kind,
    Score,
    fitted,
    fitted_works,
    held_out_works,
    machine_text,
    score,
    scores,
    served,
)
from rackline.lab.rates import (
    AGREED,
    MEANINGLESS,
    Device,
    Peaks,
    Rate,
    Repeated,
    accelerator,
    chip_name,
    in_turns,
    measured_rates,
    one_core,
    peaks_of,
    processor,
    raised,
    uncertainty,
)
from rackline.lab.transformer import model_of
from rackline.lab.workers.worker import Clock
from rackline.late import late
from rackline.parallel import Deployment, Layout, precision
from rackline.passes import UNIT, calibration_on
from rackline.system import System
from rackline.units import format_bytes, format_flop_rate, format_seconds

with late:
    from rackline.lab import jax_engine

OWN = "jax"
_REPEATS, _QUICK_REPEATS = 7, 3
_AGREED_WITHIN_S, _QUICK_AGREED_WITHIN_S = 300.0, 20.0
_ENOUGH_S = 1.0  # of short passes, that more repeats are taken
_TRACE_S, _OWN_TRACE_S, _QUICK_TRACE_S = 4.0, 2.0, 0.3
_OUTPUT_LEN, _QUICK_OUTPUT_LEN = 16, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came out.

    Args:
        device: that was measured.
        engine: its name.
        versions: of what was measured.
        date: when, in UTC.
        rates: that the device reached without the engine.
        rows: passes and requests, predicted and measured.
        fit: share of each fitted number's uncertainty that the passes removed [1].
        spread: median over all passes of the distance of the repeats' quartiles [1].
        uncertainty: half width of the interval of the median, over it, that nine in ten passes keep to [1].
        is_busy: whether that is more than 5 %, although the time for it was used; such a result is marked.
        seconds: that the measurement took [s].
        text: of the file.
    """

    json_keys: ClassVar[tuple[str, ...]] = (
        "device", "engine", "versions", "date", "rates", "fitted", "held_out", "rows", "determined", "spread",
        "uncertainty", "is_busy", "seconds",
    )  # fmt: skip

    device: Device
    engine: str
    versions: dict[str, str]
    date: str
    rates: tuple[Rate, ...]
    rows: tuple[Compared, ...]
    determined: dict[str, float]
    spread: float
    uncertainty: float
    is_busy: bool
    seconds: float
    text: str

    @property
    def held_out(self) -> dict[Kind, Score]:
        """Errors of what was not fitted, by kind."""
        return scores(self.rows)

    @property
    def fitted(self) -> Score:
        """Errors of what was fitted."""
        return score([row for row in self.rows if row.is_fitted])


def measure_machine(setup: MeasureSetup) -> Measured:
    """Measure a machine and an engine on it.

    Raises:
        InputError: the engine is not installed, or the times say nothing.
    """
    began = time.perf_counter()
    setup.progress("starting the engine", 0, 5)
    with one_core() if setup.cpu_clock else nullcontext():
        engine = start_engine(setup)
        try:
            return _measured(setup, device_of(setup.device), engine, began)
        finally:
            engine.close()


def start_engine(setup: MeasureSetup) -> Engine:
    """The engine with a random-weight model, ready to run passes.

    Raises:
        InputError: it is unknown or not installed; the message says how to get it.
    """
    if setup.engine == OWN:
        clock = Clock(cpu=setup.cpu_clock)
        dtype = setup.dtype or "fp32"
        return jax_engine.jax_engine(dtype, setup.seed, quick=setup.quick, clock=clock, device=setup.device)
    known = [OWN, *installable()]
    if setup.engine not in known:
        raise unknown_name("engine", setup.engine, known)
    return process_engine(setup)


def _measured(setup: MeasureSetup, device: Device, engine: Engine, began: float) -> Measured:
    repeats = _QUICK_REPEATS if setup.quick else _REPEATS
    setup.progress("rates of the device", 1, 5)
    rates = measured_rates(device, repeats, Clock(cpu=setup.cpu_clock), small=setup.quick)
    peaks, launch_s = peaks_of(rates), next(rate.value for rate in rates if rate.name == "launch")

    works, unseen = fitted_works(engine.limits), held_out_works(engine.limits, setup.seed, few=setup.quick)
    setup.progress("first passes", 2, 5)
    engine.prepare((*works, *unseen))
    setup.progress("passes", 3, 5)
    within_s = setup.agreed_within_s
    if within_s is None:
        within_s = _QUICK_AGREED_WITHIN_S if setup.quick else _AGREED_WITHIN_S
    everything = timed(engine, (*works, *unseen), repeats, within_s)
    times, more = ({work: everything[work] for work in some} for some in (works, unseen))
    spread = float(np.median([one.spread for one in everything.values()]))
    known = uncertainty(everything.values())
    if known > MEANINGLESS:
        raise InputError(
            what="machine",
            given=f"medians of passes that are known to {known:.0%} after {within_s:g} s",
            allowed=f"at most {MEANINGLESS:.0%}: end other programs, or measure longer with --max-time",
        )
    fit = fit_of(engine, deployment_on(engine, device, peaks), times, launch_s)
    now = datetime.now(UTC)
    facts: dict[str, Any] = {
        "date": now.date().isoformat(),
        "engine": engine.name,
        "versions": {**engine.versions, "rackline": version("rackline")},
        "dtype": engine.dtype,
        "clock": "processor time of one core" if setup.cpu_clock else "wall",
        "fitted_passes": len(works),
        "spread": spread,
        "uncertainty": known,
        "busy": known > AGREED,
        "device": {"cores": device.cores, **({"clock_hz": device.clock_hz} if device.clock_hz else {})},
        "rates": [_plain_rate(rate) for rate in rates],
    }
    best = raised(peaks, fit.calibration, engine.dtype)
    text = machine_text(device, rates, best, peaks, engine, fit.calibration, facts)
    system = resolved(text, engine)
    deployment = system.deployment(Layout())
    rows = [*compared(deployment, times, is_fitted=True), *compared(deployment, more)]
    setup.progress("requests", 4, 5)
    rows += served(
        engine,
        deployment,
        system.stack,
        seed=setup.seed,
        trace_s=_QUICK_TRACE_S if setup.quick else _OWN_TRACE_S if setup.engine == OWN else _TRACE_S,
        output_len=_QUICK_OUTPUT_LEN if setup.quick else _OUTPUT_LEN,
    )
    facts |= {"held_out": _plain_scores(scores(rows))}
    setup.progress("done", 5, 5)
    return Measured(
        device=device,
        engine=engine.name,
        versions=facts["versions"],
        date=now.isoformat(timespec="seconds"),
        rates=rates,
        rows=tuple(rows),
        determined=fit.determined,
        spread=spread,
        uncertainty=known,
        is_busy=known > AGREED,
        seconds=time.perf_counter() - began,
        text=machine_text(device, rates, best, peaks, engine, fit.calibration, facts),
    )


def timed(engine: Engine, works: Sequence[Work], repeats: int, agreed_within_s: float = 0.0) -> dict[Work, Repeated]:
    """Passes of an engine, timed in turns: what disturbs the machine for a while meets all of them alike.

    Those that are fitted come twice in each round, since all predictions rest on them, unless their contexts take long.

    Args:
        repeats: of each, at least [count].
        agreed_within_s: time within which more follow until they agree [s].
    """
    twice = [work for work in fitted_works(engine.limits) if work in works] if engine.in_a_row == 1 else []
    calls = [*((work, 0) for work in works), *((work, 1) for work in twice)]
    found = in_turns(
        {key: partial(engine.seconds, key[0]) for key in calls},
        repeats,
        enough_s=_ENOUGH_S,
        in_a_row=engine.in_a_row,
        agreed_within_s=agreed_within_s,
    )
    return {
        work: Repeated(seconds=(*found[work, 0].seconds, *(found[work, 1].seconds if work in twice else ())))
        for work in works
    }


def deployment_on(engine: Engine, device: Device, peaks: Peaks) -> Deployment:
    """The engine's model on one device, ideal so far.

    Args:
        peaks: best rates of the device.
    """
    chip = Chip(
        name=chip_name(device),
        full_name=device.name,
        vendor=device.vendor,
        generation=device.kind,
        peak_flop_per_s=peaks.flop_per_s,
        hbm_bytes=device.memory_bytes,
        hbm_bytes_per_s=peaks.bytes_per_s,
        cores=device.cores,
    )
    level = FabricLevel(name="scale_up", size=1, bytes_per_s_each_way=peaks.bytes_per_s, latency_s=0.0)
    alone = Cluster(name=chip.name, chip=chip, num_chips=1, levels=(level,))
    model = model_of(engine.shape)
    types = precision(engine.dtype, model, chip)
    return System.of(model, alone, calibration=UNIT, precisions=[types]).deployment(Layout())


def fit_of(engine: Engine, deployment: Deployment, times: dict[Work, Repeated], launch_s: float) -> Fit:
    """The calibration of an engine from some of its passes.

    Args:
        deployment: of its model.
        times: of the passes.
        launch_s: of a call that does nothing [s].
    """
    seconds = [one.median_s for one in times.values()]
    return fitted(deployment.table(), list(times), seconds, launch_s, engine.name, engine.context_block)


def resolved(text: str, engine: Engine) -> System:
    """The engine's model on the machine of a file, as every command finds it, and the file's stack.

    Args:
        text: of the file.
        engine: whose model it is.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine.toml"
        write_text(path, text, what="machine")
        machine = cluster(str(path)).with_num_chips(1)
        model = model_of(engine.shape)
        types = precision(engine.dtype, model, machine.chip)
        return System.of(model, machine, calibration=calibration_on(machine), precisions=[types])


def compared(deployment: Deployment, times: dict[Work, Repeated], *, is_fitted: bool = False) -> list[Compared]:
    """Passes, predicted by the pass table of a deployment."""
    table = deployment.table()
    return [
        Compared(
            kind=work.kind,
            sequences=work.sequences,
            context_len=work.context_len,
            prompt_tokens=work.prompt_tokens,
            predicted_s=float(table.seconds(work.batch())[0]),
            measured_s=one.median_s,
            spread=one.spread,
            is_fitted=is_fitted,
        )
        for work, one in times.items()
    ]


def device_of(kind: str) -> Device:
    """The device that JAX computes on: "cpu" or "gpu"."""
    if kind == "cpu":
        return processor()
    import jax

    devices: Any = jax.devices  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    found = devices(kind)
    return accelerator(found[0], len(found))


def _plain_rate(rate: Rate) -> dict[str, Any]:
    return {
        "name": rate.name,
        "dtype": rate.dtype,
        "unit": rate.unit,
        "value": rate.value,
        "spread": rate.spread,
        **({"rows": rate.rows, "inputs": rate.inputs, "outputs": rate.outputs} if rate.rows else {}),
        **({"footprint_bytes": rate.footprint_bytes} if rate.footprint_bytes else {}),
    }


def _plain_scores(found: dict[Kind, Score]) -> dict[str, Any]:
    return {
        kind: {
            "n": one.n,
            **({"median_abs_error": one.median_abs_error} if one.median_abs_error is not None else {}),
            **({"p90_abs_error": one.p90_abs_error} if one.p90_abs_error is not None else {}),
        }
        for kind, one in found.items()
    }


def measured_report(found: Measured, width: int) -> Iterable[RenderableType]:
    """Device, rates, passes and requests, errors.

    Args:
        width: of the terminal [characters].
    """
    device = found.device
    clock = f", {device.clock_hz / 1e9:.2f} GHz" if device.clock_hz else ""
    many = f"{device.count} × " if device.count > 1 else ""
    yield Text(
        f"{many}{device.name}: {device.cores} cores{clock}, last-level cache {format_bytes(device.cache_bytes)}, "
        f"memory {format_bytes(device.memory_bytes)}"
    )
    yield _rates(found.rates)
    yield _rows(found.rows)
    yield _scores(found)
    if found.is_busy:
        yield Text(
            f"measured on a busy machine: medians of passes are known to {found.uncertainty:.0%}, repeats spread by "
            f"{found.spread:.0%}",
            style="yellow",
        )


def _rates(rates: Iterable[Rate]) -> Sheet[Rate]:
    def name(rate: Rate) -> str:
        if rate.rows:
            return f"{rate.name} {rate.rows} × {rate.inputs} × {rate.outputs}"
        return f"{rate.name}{f', {format_bytes(rate.footprint_bytes)}' if rate.footprint_bytes else ''}"

    def value(rate: Rate) -> str:
        write = {"s": format_seconds, "FLOP/s": format_flop_rate}.get(rate.unit)
        return write(rate.value) if write is not None else f"{format_bytes(rate.value)}/s"

    columns: list[Column[Rate]] = [
        Column("name", "", getter=name),
        Column("dtype", "type"),
        Column("value", "rate", "figures", value),
        Column("spread", "spread", "share"),
    ]
    return Sheet("rates", columns, list(rates), title="reached without the engine")


def _rows(rows: Iterable[Compared]) -> Sheet[Compared]:
    def amount(key: str, title: str) -> Column[Compared]:
        return Column(key, title, "whole", lambda row: getattr(row, key) or "")

    columns: list[Column[Compared]] = [
        Column("kind", "", getter=lambda row: f"{row.kind}{' *' if row.is_fitted else ''}"),
        amount("sequences", "sequences"),
        amount("context_len", "context"),
        amount("prompt_tokens", "prompt"),
        Column("predicted_s", "predicted", "s"),
        Column("measured_s", "measured", "s"),
        Column("error", "error", "error"),
    ]
    return Sheet("passes", columns, [row for row in rows if row.kind in WORK_KINDS], "passes", "* fitted")


def _scores(found: Measured) -> Sheet[Any]:
    rows = [(kind, one.n, one.median_abs_error, one.p90_abs_error) for kind, one in found.held_out.items()]
    columns: list[Column[Any]] = [
        Column("kind"),
        Column("n", "n", "whole"),
        Column("median_abs_error", "median error", "share"),
        Column("p90_abs_error", "p90", "share"),
    ]
    return Sheet("held_out", columns, rows, title="not fitted: predicted against measured")


_X: dict[Kind, Measure] = {
    "decode": Measure(field="x", title="context [tokens]", kind="count"),
    "prefill": Measure(field="x", title="prompt [tokens]", kind="count"),
    "mixed": Measure(field="x", title="prompt in the pass [tokens]", kind="count"),
    "served": Measure(field="x", title="request rate over the highest", kind="share"),
}
_FIELDS: dict[Kind, str] = {
    "decode": "context_len", "prefill": "prompt_tokens", "mixed": "prompt_tokens", "served": "load",
}  # fmt: skip
_Y = Measure(field="seconds", title="time", kind="seconds")


def measured_figure(found: Measured) -> Figure:
    """Predicted and measured times of passes and requests."""
    rows = [row for kind in _X for row in _figure_rows(found.rows, kind)]
    names = list(dict.fromkeys(str(row["series"]) for row in rows))
    panels = [_panel(rows, kind, names) for kind in _X if any(row["kind"] == kind for row in rows)]
    busy = "; the machine was busy" if found.is_busy else ""
    return Figure(
        title=f"{found.engine} on {found.device.name}: predicted and measured",
        subtitle=f"lines: predicted; points: measured, filled where they were not fitted. {found.date[:10]}{busy}",
        description="Time of decode steps against context by batch, of prompts, of passes with both, and median time "
        "of a served request against the rate.",
        spec={"data": {"values": rows}, "hconcat": panels},
    )


def _figure_rows(rows: Sequence[Compared], kind: Kind) -> list[dict[str, Any]]:
    points: dict[tuple[str, float, bool], list[Compared]] = {}
    for row in sorted(rows, key=lambda row: (row.sequences, row.context_len, row.prompt_tokens, row.load)):
        if row.kind == kind:
            series = "requests" if row.load else f"batch {row.sequences}" if row.sequences else "prompt"
            points.setdefault((series, float(getattr(row, _FIELDS[kind])), row.is_fitted), []).append(row)
    return [
        {
            "kind": kind,
            "series": series,
            "x": x,
            "which": which,
            "seconds": float(np.median([getattr(row, f"{which}_s") for row in some])),
            "fitted": is_fitted,
        }
        for (series, x, is_fitted), some in points.items()
        for which in ("predicted", "measured")
    ]


def _panel(rows: Sequence[dict[str, Any]], kind: Kind, names: Sequence[str]) -> dict[str, Any]:
    some = [row for row in rows if row["kind"] == kind]
    x = (linear_axis if _FIELDS[kind] == "load" else log_axis)(_X[kind], [row["x"] for row in some])
    y = log_axis(_Y, [row["seconds"] for row in some])
    used = list(dict.fromkeys(str(row["series"]) for row in some))
    encoding = {"x": x, "y": y, "color": colour(names, width=260, used=used)}
    measures = (SERIES, Measure(field="which", title=kind), _X[kind], _Y)
    only = [{"filter": f"datum.kind == '{kind}'"}]

    def those(which: str, *more: str) -> list[dict[str, Any]]:
        return [*only, {"filter": f"datum.which == '{which}'"}, *({"filter": text} for text in more)]

    return {
        "title": kind,
        "width": 220,
        "height": 280,
        "layer": [
            hovered({"type": "line"}, encoding, measures, transform=those("predicted")),
            hovered(
                {"type": "point", "filled": True, "size": 50},
                encoding,
                measures,
                transform=those("measured", "!datum.fitted"),
            ),
            hovered({"type": "point", "size": 50}, encoding, measures, transform=those("measured", "datum.fitted")),
        ],
    }
