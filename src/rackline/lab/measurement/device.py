"""What a device is: name, cores, caches, memory, clock, as the operating system or the driver says."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rackline.errors import InputError

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
    first = text.split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines() if ":" in line)
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
