"""What was measured as records of the catalogue: a chip, a cluster, a calibration and a stack, in one file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rackline.files import rounded, toml_text
from rackline.lab.measurement.engine import Engine
from rackline.lab.measurement.rates import Device, Rate
from rackline.passes import Calibration

_LOCAL_LATENCY_S = 1e-6  # where nothing was exchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Best rates that anything reached on the device.

    Args:
        bytes_per_s: of memory [bytes/s].
        flop_per_s: of products, by data type [FLOP/s].
    """

    bytes_per_s: float
    flop_per_s: Mapping[str, float]


def peaks_of(rates: Sequence[Rate]) -> Peaks:
    """The best of the measured rates: reading or copying, products of any number of rows."""
    best: dict[str, float] = {}
    for rate in rates:
        if rate.unit == "FLOP/s":
            best[rate.dtype] = max(best.get(rate.dtype, 0.0), rate.value)
    memory = max(rate.value for rate in rates if rate.name in ("read", "copy"))
    return Peaks(bytes_per_s=memory, flop_per_s=best)


def raised(peaks: Peaks, calibration: Calibration, dtype: str) -> Peaks:
    """The peaks, raised to what an engine reached where that is more: a share of a peak is at most 1.

    Args:
        peaks: of the device alone.
        calibration: fitted with these peaks.
        dtype: in which the engine multiplies.
    """
    operations = list(calibration.operations.values())
    memory = max(1.0, *(one.eta_memory for one in operations))
    compute = max(1.0, *(one.eta_compute for one in operations))
    flop = {**peaks.flop_per_s, dtype: peaks.flop_per_s[dtype] * compute}
    return Peaks(bytes_per_s=peaks.bytes_per_s * memory, flop_per_s=flop)


def chip_name(device: Device) -> str:
    """A name for the catalogue: "AMD EPYC 7763" with 2 cores is "amd-epyc-7763-2-cores"."""
    words = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((?:r|tm)\)", "", device.name.lower())).strip("-")
    return f"{words or 'device'}-{device.cores}-cores" if device.kind == "cpu" else words or "device"


def machine_text(
    device: Device,
    rates: Sequence[Rate],
    peaks: Peaks,
    before: Peaks,
    engine: Engine,
    calibration: Calibration,
    measured: Mapping[str, Any],
) -> str:
    """The file: chip, cluster, calibration, stack, and how they were measured.

    Args:
        device: that was measured.
        rates: that it reached.
        peaks, before: best rates, with and without what the engine reached.
        engine: that was measured.
        calibration: fitted with the peaks `before`.
        measured: date, versions, spread, errors; becomes a table of its own.
    """
    date = str(measured["date"])
    what = f"measured by rackline on {date}: {device.name}, {engine.name} {' '.join(engine.versions.values())}"
    source: dict[str, Any] = {"fields": ["*"], "kind": "measured", "citation": what, "accessed": date}
    assumed = {"fields": ["*"], "kind": "assumed", "citation": f"scheduler of {engine.name} as measured"}
    name = chip_name(device)
    chip: dict[str, Any] = {
        "name": name,
        "full_name": device.name,
        "vendor": device.vendor,
        "generation": device.kind,
        "peak_flop_per_s": dict(peaks.flop_per_s),
        "hbm_bytes": device.memory_bytes,
        "hbm_bytes_per_s": peaks.bytes_per_s,
        "cores": device.cores,
        "l2_bytes": device.cache_bytes,
        "sources": [source],
    }
    rate_s, latency_s = _link(rates, peaks)
    cluster: dict[str, Any] = {
        "name": name,
        "full_name": f"{device.count} × {device.name}" if device.count > 1 else device.name,
        "num_chips": device.count,
        "chips_per_host": device.count,
        "levels": [
            {
                "name": "scale_up",
                "size": device.count,
                "bytes_per_s_each_way": rate_s,
                "latency_s": latency_s,
                "topology": "mesh",
            }
        ],
        "sources": [source],
    }
    stack: dict[str, Any] = {
        "name": f"{engine.name.replace('.', '-')}-here",
        "full_name": f"{engine.name} as measured",
        "admission": engine.scheduler.admission,
        "max_batched_tokens": engine.scheduler.max_batched_tokens,
        "max_num_seqs": engine.scheduler.max_num_seqs,
        "memory_fraction": 0.9,
        **({"neighbour_passes": True} if engine.scheduler.neighbour_passes else {}),
        "sources": [assumed],
    }
    parts = {
        "chip": chip,
        "cluster": cluster,
        "calibration": _calibration(calibration, peaks, before, engine, measured, source),
        "stack": stack,
        "measured": dict(measured),
    }
    comments = ["Written by rackline measure; works wherever a cluster, a chip or a calibration is asked for."]
    return toml_text(rounded(parts), comments)


def _calibration(
    found: Calibration,
    peaks: Peaks,
    before: Peaks,
    engine: Engine,
    measured: Mapping[str, Any],
    source: Mapping[str, Any],
) -> dict[str, Any]:
    memory = before.bytes_per_s / peaks.bytes_per_s
    compute = before.flop_per_s[engine.dtype] / peaks.flop_per_s[engine.dtype]
    return {
        "name": f"{engine.name.replace('.', '-')}-here",
        "full_name": f"{engine.name} on this machine",
        "stack": engine.name,
        "description": found.description,
        "evidence": "measured",
        "step_policy": found.step_policy,
        "context_block": found.context_block,
        "operation": [
            {
                "class": kind,
                "dtype": dtype,
                "overhead_s": one.overhead_s,
                "eta_compute": min(one.eta_compute * compute, 1.0),
                "eta_memory": min(one.eta_memory * memory, 1.0),
                "exposed": one.exposed,
                "depth_s": one.depth_s,
                "tile_s": one.tile_s,
                "evidence": "measured",
                "rows": int(measured["fitted_passes"]),
                "median_error": one.median_error,
                "stack_version": next(iter(engine.versions.values())),
            }
            for (kind, dtype), one in found.operations.items()
        ],
        "sources": [dict(source)],
    }


def _link(rates: Sequence[Rate], peaks: Peaks) -> tuple[float, float]:
    """(rate [bytes/s], latency [s]) of exchanges between the local devices; the memory's where there are none."""
    found = sorted(
        (rate for rate in rates if rate.name.startswith("all-reduce")), key=lambda rate: rate.footprint_bytes
    )
    if not found:
        return peaks.bytes_per_s, _LOCAL_LATENCY_S
    smallest, largest = found[0], found[-1]
    devices = int(smallest.name.rsplit(" ", 1)[-1])
    sent = 2.0 * (devices - 1) / devices  # of an all-reduce by ring, each way, per byte of the buffer
    size = smallest.footprint_bytes / devices
    return sent * largest.value, size / smallest.value / (2.0 * (devices - 1))
