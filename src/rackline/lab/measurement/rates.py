"""What a device reaches without an engine: memory, products, launches, exchanges between local devices (by JAX)."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from rackline.lab.measurement.device import Device
from rackline.lab.measurement.repeats import Repeated, in_turns
from rackline.lab.measurement.workers.worker import Clock

_BEYOND_CACHE = 4.0  # footprint over the last cache
_MEMORY_SHARE = 1 / 16  # of the device's memory, at most
_PRODUCT = (1024, 2048)  # inputs, outputs
_ROWS = (1, 8, 64, 512)
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
    footprint = min(max(_BEYOND_CACHE * device.cache_bytes, 128.0 * 2**20), _MEMORY_SHARE * device.memory_bytes)
    if small:
        footprint = 4.0 * 2**20
    trials = [*_memory(int(footprint), clock), *_products(clock, small=small), *_launch(clock), *_exchanges(clock)]
    for _, call in trials:
        call()
    times = in_turns({number: call for number, (_, call) in enumerate(trials)}, repeats)
    return tuple(_reached(rate, times[number]) for number, (rate, _) in enumerate(trials))


Trial = tuple[Rate, Callable[[], float]]


def _reached(rate: Rate, times: Repeated) -> Rate:
    """The rate at the time that was measured; until then its value is the amount of work."""
    value = times.typical_s if rate.unit == "s" else rate.value / times.typical_s
    return replace(rate, value=value, spread=times.spread)


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


def _products(clock: Clock, *, small: bool) -> list[Trial]:
    """Products of rows with weights that are not in the cache, for one row and for many."""
    inputs, outputs = (side // 8 for side in _PRODUCT) if small else _PRODUCT
    copies = 2 if small else 8
    found: list[Trial] = []
    for dtype, number in (("fp32", jnp.float32), ("bf16", jnp.bfloat16)):
        weights = [jnp.full((inputs, outputs), 0.01 * (1 + one), dtype=number) for one in range(copies)]
        run: Any = jax.jit(lambda x, weights: [x @ one for one in weights])
        for rows in _ROWS[: 2 if small else None]:
            some = weights[:1] if rows * inputs * outputs > 2e8 else weights
            flop = 2.0 * rows * inputs * outputs * len(some)
            rate = Rate(
                name="product",
                dtype=dtype,
                unit="FLOP/s",
                value=flop,
                spread=0.0,
                rows=rows,
                inputs=inputs,
                outputs=outputs,
                footprint_bytes=float(sum(one.nbytes for one in some)),
            )
            found.append((rate, partial(_timed, clock, run, jnp.ones((rows, inputs), dtype=number), some)))
    return found


def _launch(clock: Clock) -> list[Trial]:
    """A call that does nothing."""
    run: Any = jax.jit(lambda x: x + 1.0)
    rate = Rate(name="launch", dtype="fp32", unit="s", value=0.0, spread=0.0)
    return [(rate, partial(_timed, clock, run, jnp.zeros(8)))]


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
