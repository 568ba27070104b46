"""What a device reaches without an engine: memory, products, launches and exchanges, by repeated timings in turns."""

from __future__ import annotations

import math
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from rackline.errors import InputError
from rackline.lab.workers.worker import Clock
from rackline.passes import Calibration

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false


_CPU = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "": 1}
_ASSUMED_CACHE_BYTES = 32.0 * 2**20  # where the system does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device: a GPU, or the processor with all the cores that this process may use.

    Args:
        name: as the system calls it.
        vendor: who makes it.
        kind: cpu or gpu.
        cores: of the processor, or multiprocessors [count].
        cache_bytes: last-level cache that one core sees [bytes].
        memory_bytes: of the device [bytes].
        clock_hz: of the cores now, None if unknown [Hz].
        count: devices of this kind on the machine [count].
    """

    name: str
    vendor: str
    kind: str
    cores: int
    cache_bytes: float
    memory_bytes: float
    clock_hz: float | None
    count: int = 1


def processor() -> Device:
    """The processor of this machine."""
    info = _cpu_info()
    return Device(
        name=info.get("model name") or platform.processor() or platform.machine() or "processor",
        vendor=info.get("vendor_id", "") or "-",
        kind="cpu",
        cores=available_cores(),
        cache_bytes=max(_caches(), default=_ASSUMED_CACHE_BYTES),
        memory_bytes=float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        clock_hz=float(info["cpu MHz"]) * 1e6 if "cpu MHz" in info else None,
    )


def available_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def accelerator(found: Any, count: int) -> Device:
    """A GPU, as JAX and the driver describe it.

    Args:
        found: JAX's device.
        count: devices of this kind on the machine.
    """
    stats = found.memory_stats() or {}
    clock, total = _nvidia()
    return Device(
        name=str(found.device_kind),
        vendor="NVIDIA" if "nvidia" in str(found.device_kind).lower() or clock else "-",
        kind="gpu",
        cores=int(getattr(found, "core_count", 0) or 1),
        cache_bytes=50.0 * 2**20,  # the largest of today's; only sizes footprints
        memory_bytes=total or float(stats.get("bytes_limit", 0.0)) or 16.0 * 2**30,
        clock_hz=clock,
        count=count,
    )


@contextmanager
def one_core() -> Generator[None]:
    """This process on one core: then its processor time is the time that passes on that core."""
    set_affinity = getattr(os, "sched_setaffinity", None)
    if set_affinity is None:
        raise InputError(what="clock", given="cpu", allowed="wall: this system cannot hold a process on one core")
    before = os.sched_getaffinity(0)
    set_affinity(0, {max(before)})
    try:
        yield
    finally:
        set_affinity(0, before)


def _cpu_info() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _caches() -> list[float]:
    """Sizes of the caches of the first core [bytes]."""
    found: list[float] = []
    for file in sorted(_CPU.glob("index*/size")) if _CPU.is_dir() else []:
        try:
            size = re.fullmatch(r"(\d+)([KMG]?)", file.read_text(encoding="ascii").strip())
        except OSError:
            continue
        if size:
            found.append(float(size[1]) * _UNITS[size[2]])
    return found


def _nvidia() -> tuple[float | None, float | None]:
    """(clock [Hz], memory [bytes]) of the first NVIDIA GPU; None where nothing answers."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None, None
    command = [tool, "--query-gpu=clocks.sm,memory.total", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        clock, total = (float(part) for part in lines.splitlines()[0].split(","))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None, None
    return clock * 1e6, total * 2**20


# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false


AGREED = 0.05
"""Half width of the interval of a median, over it, at which repeats agree [1]."""
MEANINGLESS = 1.0
"""The same from which on the times say nothing: a median is not known to a factor of two [1]."""
_MOST_REPEATS = 10  # times as many as asked for, of short calls
_TAIL, _TWO_SIDED = 0.025, 1.96  # of the 95 % intervals
_EXACT = 70  # repeats up to which their place is exact
_AGREEING = 0.9  # share of the calls whose repeats have to agree
_PAUSE = 0.08  # between timings, over what the one before took; Linux takes up to 0.05 from a process in real time
K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Timings of one thing.

    Args:
        seconds: each [s].
    """

    seconds: tuple[float, ...]

    @property
    def typical_s(self) -> float:
        """The lower quartile: other programs only add time, and the very shortest is luck as well [s]."""
        return float(np.quantile(self.seconds, 0.25))

    @property
    def median_s(self) -> float:
        """The median, which is what a server that runs the same thing again and again pays [s]."""
        return float(np.median(self.seconds))

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends of the interval that holds the median with 95 % confidence; of fewer than six repeats all of them.

        The j-th and the (n + 1 - j)-th shortest of n, for the largest j with P(Binomial(n, 1/2) < j) <= 2.5 %: it holds
        for any distribution of the times.

        Sources: Le Boudec 2010, Performance Evaluation of Computer and Communication Systems, theorem 2.1; Hoefler and
            Belli 2015, Scientific Benchmarking of Parallel Computing Systems (SC15), rule 6 and section 4.2.2, which
            measures until this interval is narrow enough.
        """
        ordered, number = sorted(self.seconds), len(self.seconds)
        place = math.floor((number - _TWO_SIDED * math.sqrt(number)) / 2.0)  # of many, by the normal distribution
        if number <= _EXACT:
            below, place = 0.5**number, 0
            while below <= _TAIL:
                place += 1
                below += math.comb(number, place) * 0.5**number
        first = max(place - 1, 0)
        return ordered[first], ordered[number - 1 - first]

    @property
    def uncertainty(self) -> float:
        """Half the width of the interval of the median, over the median [1]."""
        low, high = self.interval
        return 0.5 * (high - low) / self.median_s

    @property
    def spread(self) -> float:
        """Distance between the quartiles over the lower one [1]."""
        low, high = np.quantile(self.seconds, (0.25, 0.75))
        return float((high - low) / low)


def uncertainty(found: Iterable[Repeated]) -> float:
    """How closely the medians of several things are known: that of the least certain tenth left out [1]."""
    return float(np.quantile([one.uncertainty for one in found], _AGREEING))


def in_turns(
    calls: Mapping[K, Callable[[], float]],
    repeats: int,
    *,
    enough_s: float = 0.0,
    in_a_row: int = 1,
    agreed_within_s: float = 0.0,
    now: Callable[[], float] = time.perf_counter,
    pause: Callable[[float], None] = time.sleep,
) -> dict[K, Repeated]:
    """Run several timings in turns, with pauses between them.

    What a system does from time to time on a processor that is never idle, it does in the pauses.

    Args:
        calls: each returns its time [s].
        repeats: of each, at least [count].
        enough_s: go on until the rounds have taken this time together, up to ten times as many [s].
        in_a_row: timings of one thing before its turn is over [count].
        agreed_within_s: go on until the medians of nine in ten are known to 5 %, at most this time in all [s].
        now, pause: clock of the rounds, and what waits between them.

    Raises:
        InputError: a call took no time, so that the clock says nothing of it.
    """
    taken: dict[K, list[float]] = {key: [] for key in calls}
    began, number = now(), 0
    while True:
        found = {key: Repeated(seconds=tuple(times)) for key, times in taken.items()}
        took = now() - began
        if (
            number >= repeats
            and (took >= enough_s or number >= _MOST_REPEATS * repeats)
            and (took >= agreed_within_s or uncertainty(found.values()) <= AGREED)
        ):
            return found
        for key, call in calls.items():
            started = now()
            times = [call() for _ in range(in_a_row)]
            if not all(0.0 < one < math.inf for one in times):
                raise InputError(
                    what="machine",
                    given=f"a timing of {min(times):g} s",
                    allowed="a clock that tells passes from nothing",
                )
            taken[key] += times
            pause(_PAUSE * (now() - started))
        number += in_a_row


_BEYOND_CACHE = 4.0  # footprint over the last cache
_MEMORY_SHARE = 1 / 16  # of the device's memory, at most
_LEAST_BYTES = {"cpu": 2.0**27, "gpu": 2.0**31}  # read in much longer than a call takes
_PRODUCT = {"cpu": (1024, 2048), "gpu": (8192, 8192)}  # inputs, outputs; an H100 needs a millisecond for many rows
_ROWS = {"cpu": (1, 8, 64, 512), "gpu": (1, 16, 128, 1024, 8192)}
_MESSAGES = (2**14, 2**22)  # bytes of a rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One rate that was reached.

    Args:
        name: what was run.
        dtype: data type.
        unit: "bytes/s", "FLOP/s" or "s".
        value: at the lower quartile of the times.
        spread: of the times, distance of the quartiles over the lower [1].
        rows, inputs, outputs: of a product; 0 for others [count].
        footprint_bytes: memory that is touched [bytes].
    """

    name: str
    dtype: str
    unit: str
    value: float
    spread: float
    rows: int = 0
    inputs: int = 0
    outputs: int = 0
    footprint_bytes: float = 0.0


def measured_rates(device: Device, repeats: int, clock: Clock, *, small: bool = False) -> tuple[Rate, ...]:
    """All rates of the default device, timed in turns.

    Args:
        device: whose caches the footprints exceed.
        repeats: of each timing [count].
        clock: that times them.
        small: footprints of a few megabytes, for a first look.
    """
    footprint = min(
        max(_BEYOND_CACHE * device.cache_bytes, _LEAST_BYTES[device.kind]), _MEMORY_SHARE * device.memory_bytes
    )
    if small:
        footprint = 4.0 * 2**20
    nothing: Any = jax.jit(lambda x: x + 1.0)
    launch = Rate(name="launch", dtype="fp32", unit="s", value=0.0, spread=0.0)
    trials = [
        *_memory(int(footprint), clock),
        *_products(device.kind, clock, small=small),
        (launch, partial(_timed, clock, nothing, jnp.zeros(8))),
        *_exchanges(clock),
    ]
    for _, call in trials:
        call()
    times = in_turns({number: call for number, (_, call) in enumerate(trials)}, repeats)
    return tuple(
        replace(rate, value=taken if rate.unit == "s" else rate.value / taken, spread=times[number].spread)
        for number, (rate, taken) in enumerate((rate, times[at].typical_s) for at, (rate, _) in enumerate(trials))
    )


Trial = tuple[Rate, Callable[[], float]]
"""What is timed: until then the value of the rate is the amount of work."""


def _timed(clock: Clock, run: Callable[..., Any], *arguments: Any) -> float:
    began = clock.now()
    jax.block_until_ready(run(*arguments))
    return clock.now() - began


def _memory(footprint: int, clock: Clock) -> list[Trial]:
    """Reading, copying, and touching memory for the first time."""
    whole = jnp.ones((64, footprint // 256), dtype=jnp.float32)
    read: Any = jax.jit(lambda x: jnp.sum(x, axis=1))
    copy: Any = jax.jit(lambda x: x + 1.0)

    def touch() -> float:
        began = clock.now()
        np.ones(footprint // 8, dtype=np.float64)
        return clock.now() - began

    size = float(whole.size * 4)

    def rate(name: str, amount: float) -> Rate:
        return Rate(name=name, dtype="fp32", unit="bytes/s", value=amount, spread=0.0, footprint_bytes=size)

    return [
        (rate("read", size), partial(_timed, clock, read, whole)),
        (rate("copy", 2.0 * size), partial(_timed, clock, copy, whole)),
        (rate("first touch (host)", size), touch),
    ]


def _products(kind: str, clock: Clock, *, small: bool) -> list[Trial]:
    """Products of rows with weights that are not in the cache, for one row and for many."""
    inputs, outputs = (side // 8 for side in _PRODUCT[kind]) if small else _PRODUCT[kind]
    copies = 2 if small else 8
    found: list[Trial] = []
    for dtype, number in (("fp32", jnp.float32), ("bf16", jnp.bfloat16)):
        weights = [jnp.full((inputs, outputs), 0.01 * (1 + one), dtype=number) for one in range(copies)]
        run: Any = jax.jit(lambda x, weights: [x @ one for one in weights])
        for rows in _ROWS[kind][: 2 if small else None]:
            some = weights[:1] if rows * inputs * outputs > 2e8 else weights
            rate = Rate(
                name="product",
                dtype=dtype,
                unit="FLOP/s",
                value=2.0 * rows * inputs * outputs * len(some),
                spread=0.0,
                rows=rows,
                inputs=inputs,
                outputs=outputs,
                footprint_bytes=float(sum(one.nbytes for one in some)),
            )
            found.append((rate, partial(_timed, clock, run, jnp.ones((rows, inputs), dtype=number), some)))
    return found


def _exchanges(clock: Clock) -> list[Trial]:
    """All-reduce between the local devices; those of one processor stand for the way of the program, not of links."""
    placed: Any = jnp.zeros(1).devices()
    devices = jax.local_devices(backend=next(iter(placed)).platform)
    if len(devices) < 2:
        return []
    mesh = Mesh(np.array(devices), ("all",))
    split = PartitionSpec("all")
    run: Any = jax.jit(
        jax.shard_map(lambda x: jax.lax.psum(x, "all"), mesh=mesh, in_specs=(split,), out_specs=PartitionSpec())
    )
    found: list[Trial] = []
    for size in _MESSAGES:
        spread = jax.device_put(jnp.ones((len(devices), size // 4)), jax.NamedSharding(mesh, split))
        rate = Rate(
            name=f"all-reduce of {len(devices)}",
            dtype="fp32",
            unit="bytes/s",
            value=float(size),
            spread=0.0,
            footprint_bytes=float(size * len(devices)),
        )
        found.append((rate, partial(_timed, clock, run, spread)))
    return found


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
    flop = {**peaks.flop_per_s, dtype: peaks.flop_per_s[dtype] * max(1.0, *(one.eta_compute for one in operations))}
    return Peaks(bytes_per_s=peaks.bytes_per_s * memory, flop_per_s=flop)


_LOCAL_LATENCY_S = 1e-6  # where nothing was exchanged


def chip_name(device: Device) -> str:
    """A name for the catalogue: "AMD EPYC 7763" with 2 cores is "amd-epyc-7763-2-cores"."""
    words = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((?:r|tm)\)", "", device.name.lower())).strip("-")
    return f"{words or 'device'}-{device.cores}-cores" if device.kind == "cpu" else words or "device"


def link(rates: Sequence[Rate], peaks: Peaks) -> tuple[float, float]:
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
