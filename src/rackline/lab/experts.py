"""Expert parallelism over two racks: a real exchange of tokens over eight devices (lecture C40 to C47).

Each chip holds some experts and some tokens. A token is sent to the chips that hold its experts (dispatch), and their
results come back (combine). Two ways: direct, once to each of those chips; or forwarded, once to each rack and from
there to the chips. JAX on the CPU exchanges blocks of equal size, so each has room for all tokens of a chip and none is
ever dropped; what is counted are the tokens in them.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from numpy.typing import NDArray

from rackline.lab.experiment import Curve, Experiment, Reading, Setup
from rackline.passes import collectives
from rackline.passes.routing import distinct_ranks

RACKS, CHIPS = 2, 4  # chips of a rack
RANKS = RACKS * CHIPS
NUM_EXPERTS, PER_TOKEN = 64, 4
LOCAL = NUM_EXPERTS // RANKS
TOKENS, WIDTH = 512, 32  # of a chip
TOKEN_BYTES = 4.0 * WIDTH
_EVERYWHERE = ("rack", "chip")

Bytes = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What one exchange did.

    Args:
        outputs: of the layer, (ranks · tokens, width).
        sent: tokens from rank i to rank j in dispatch, (ranks, ranks).
        returned: results from rank j to rank i in combine, (ranks, ranks), the sender first.
        crossed: tokens that left their rack in dispatch [count].
    """

    outputs: jax.Array
    sent: Bytes
    returned: Bytes
    crossed: float


def router(key: jax.Array, tokens: int) -> tuple[jax.Array, jax.Array]:
    """Experts of each token, all equally likely and none twice, and their gates, both (tokens, PER_TOKEN)."""
    scores = jax.random.normal(key, (tokens, NUM_EXPERTS))
    best, chosen = jax.lax.top_k(scores, PER_TOKEN)
    return chosen, jax.nn.softmax(best, axis=-1)


def dense_sum(weights: jax.Array, x: jax.Array, chosen: jax.Array, gates: jax.Array) -> jax.Array:
    """The layer without an exchange: all experts on all tokens, summed over the chosen ones."""
    everything = jax.vmap(lambda one, x: jnp.tanh(x @ one), (0, None))(weights, x)  # (experts, tokens, width)
    share = jnp.sum(jax.nn.one_hot(chosen, weights.shape[0]) * gates[..., None], axis=1)  # (tokens, experts)
    return jnp.einsum("te,etd->td", share, everything)


def _local(weights: jax.Array, x: jax.Array, chosen: jax.Array, gates: jax.Array) -> jax.Array:
    """What the experts of this rank add for tokens that arrived, (..., width); others' experts add nothing."""
    own = jnp.where(chosen // LOCAL == jax.lax.axis_index(_EVERYWHERE), chosen % LOCAL, LOCAL)
    found = dense_sum(
        jnp.concatenate([weights, jnp.zeros_like(weights[:1])]),
        jnp.reshape(x, (-1, x.shape[-1])),
        jnp.reshape(own, (-1, PER_TOKEN)),
        jnp.reshape(gates, (-1, PER_TOKEN)),
    )
    return jnp.reshape(found, x.shape)


def _swap(x: jax.Array, axis: str | tuple[str, ...]) -> jax.Array:
    """Block i of this rank goes to rank i of the axis; block j of the result came from rank j."""
    return jax.lax.all_to_all(x, axis, split_axis=0, concat_axis=0, tiled=True)


def _sent(
    wanted: jax.Array, x: jax.Array, chosen: jax.Array, gates: jax.Array, axis: str | tuple[str, ...]
) -> tuple[jax.Array, ...]:
    """Tokens at the ranks of an axis that want them, whether each is there, their experts and their gates."""
    block = jnp.where(wanted[..., None], x[None], 0.0)
    ids, shares = (jnp.broadcast_to(one, (wanted.shape[0], *one.shape)) for one in (chosen, gates))
    return tuple(_swap(part, axis) for part in (block, wanted, ids, shares))


def _direct(weights: jax.Array, x: jax.Array, chosen: jax.Array, gates: jax.Array) -> tuple[jax.Array, ...]:
    """Dispatch to each chip with one of a token's experts, and combine."""
    wanted = jnp.any(chosen[None] // LOCAL == jnp.arange(RANKS)[:, None, None], axis=-1)  # (ranks, tokens)
    block, theirs, ids, shares = _sent(wanted, x, chosen, gates, _EVERYWHERE)
    done = jnp.where(theirs[..., None], _local(weights, block, ids, shares), 0.0)
    returned = jnp.sum(_swap(theirs, _EVERYWHERE), axis=-1)  # what came back from each rank
    rack = jax.lax.axis_index("rack")
    crossed = jnp.sum(jnp.where(jnp.arange(RANKS) // CHIPS == rack, 0, jnp.sum(wanted, axis=-1)))
    return jnp.sum(_swap(done, _EVERYWHERE), axis=0), jnp.sum(wanted, axis=-1)[None], returned[None], crossed[None]


def _forwarded(weights: jax.Array, x: jax.Array, chosen: jax.Array, gates: jax.Array) -> tuple[jax.Array, ...]:
    """Once to each rack with one of a token's experts, then to the chips inside it; back the same way, added up."""
    to_rack = jnp.any(chosen[None] // (LOCAL * CHIPS) == jnp.arange(RACKS)[:, None, None], axis=-1)  # (racks, tokens)
    arrived, theirs, ids, shares = _sent(to_rack, x, chosen, gates, "rack")  # arrived: (racks, tokens, width)
    rack = jax.lax.axis_index("rack")
    chips = rack * CHIPS + jnp.arange(CHIPS)
    wanted = jnp.any(ids[None] // LOCAL == chips[:, None, None, None], axis=-1) & theirs[None]  # (chips, racks, tokens)
    block, here, ids, shares = _sent(wanted, arrived, ids, shares, "chip")
    done = jnp.where(here[..., None], _local(weights, block, ids, shares), 0.0)
    inside = jnp.sum(_swap(done, "chip"), axis=0)  # (racks, tokens, width)
    outputs = jnp.sum(_swap(inside, "rack"), axis=0)
    crossed = jnp.sum(jnp.where(jnp.arange(RACKS) == rack, 0, jnp.sum(to_rack, axis=-1)))
    return outputs, jnp.sum(wanted, axis=(1, 2))[None], jnp.sum(_swap(here, "chip"), axis=(1, 2))[None], crossed[None]


def exchange(weights: jax.Array, x: jax.Array, chosen: jax.Array, gates: jax.Array, *, forwarded: bool) -> Exchange:
    """The layer over eight devices, two racks of four; `sent` of the forwarded one is what moves inside the racks."""
    mesh = Mesh(np.reshape(jax.devices("cpu")[:RANKS], (RACKS, CHIPS)), _EVERYWHERE)
    split = PartitionSpec(_EVERYWHERE)
    run: Any = jax.jit(
        jax.shard_map(
            _forwarded if forwarded else _direct,
            mesh=mesh,
            in_specs=(split, split, split, split),
            out_specs=(split, split, split, split),
        )
    )
    outputs, sent, returned, crossed = run(weights, x, chosen, gates)
    return Exchange(
        outputs=outputs,
        sent=np.asarray(sent, dtype=float),
        returned=np.asarray(returned, dtype=float),
        crossed=float(np.asarray(crossed).sum()),
    )


def throttled_copy(messages: Sequence[float], bytes_per_s: float) -> None:
    """Copy buffers one after the other through a link of this rate; waits where the machine's memory is faster."""
    began, due = time.perf_counter(), 0.0
    for size in messages:
        source = np.ones(int(size), dtype=np.uint8)
        np.copyto(np.empty_like(source), source)
        due += size / bytes_per_s
        left = began + due - time.perf_counter()
        if left > 0.0:
            time.sleep(left)


def links_s(up: Bytes, across: Bytes, up_per_s: float, across_per_s: float) -> float:
    """Time until every chip has sent its bytes over its two links, which work side by side [s].

    Args:
        up, across: bytes from chip i to chip j inside a rack and between racks, (ranks, ranks).
    """
    threads = [
        threading.Thread(target=throttled_copy, args=([size for size in row if size > 0.0], rate))
        for matrix, rate in ((up, up_per_s), (across, across_per_s))
        for row in matrix
    ]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def run(setup: Setup) -> Experiment:
    """Who sends what to whom, what crosses between racks, and what a slow link between them costs."""
    setup.progress("exchange over 8 devices")
    keys = jax.random.split(jax.random.key(setup.seed), 3)
    weights = jax.random.normal(keys[0], (NUM_EXPERTS, WIDTH, WIDTH)) / np.sqrt(WIDTH)
    x = jax.random.normal(keys[1], (RANKS * TOKENS, WIDTH))
    chosen, gates = router(keys[2], RANKS * TOKENS)
    wanted = np.asarray(dense_sum(weights, x, chosen, gates))
    direct = exchange(weights, x, chosen, gates, forwarded=False)
    forwarded = exchange(weights, x, chosen, gates, forwarded=True)
    distinct = float(distinct_ranks(RANKS, NUM_EXPERTS, PER_TOKEN))
    racks = float(distinct_ranks(RACKS, NUM_EXPERTS, PER_TOKEN))
    share = distinct / RANKS
    entry = TOKENS * share
    furthest = 5.0 * np.sqrt(entry * (1.0 - share))
    rack_of = np.arange(RANKS) // CHIPS
    same_rack = (rack_of[:, None] == rack_of[None, :]).astype(np.float64)
    total = float(direct.sent.sum())
    rows = [
        *(
            Reading(
                quantity=f"outputs, {name}: relative difference to all experts on one device",
                predicted=1e-5,
                measured=float(np.linalg.norm(np.asarray(found.outputs) - wanted) / np.linalg.norm(wanted)),
                check="at_most",
                source="the same sums (C39)",
            )
            for name, found in (("direct", direct), ("forwarded", forwarded))
        ),
        Reading(
            quantity="distinct chips of a token",
            unit="chips",
            predicted=distinct,
            measured=total / (RANKS * TOKENS),
            tolerance=0.02,
            check="equal",
            statistical=True,
            source="picks without replacement (passes.routing.distinct_ranks)",
        ),
        Reading(
            quantity="byte matrix: entry furthest from its prediction",
            unit="B",
            predicted=furthest * TOKEN_BYTES,
            measured=float(np.abs(direct.sent - entry).max()) * TOKEN_BYTES,
            check="at_most",
            statistical=True,
            source=f"five standard deviations of {entry * TOKEN_BYTES:,.0f} B an entry",
        ),
        Reading(
            quantity="byte matrix: combine less dispatch transposed",
            unit="B",
            predicted=0.0,
            measured=float(np.abs(direct.returned - direct.sent).max()) * TOKEN_BYTES,
            check="equal",
            source="what goes out comes back (C41)",
        ),
        Reading(
            quantity="share of the copies that leave their rack, direct",
            predicted=(RACKS - 1) / RACKS,
            measured=direct.crossed / total,
            tolerance=0.03,
            check="equal",
            statistical=True,
            source="(R - 1)/R (C47)",
        ),
        Reading(
            quantity="bytes between racks, forwarded over direct",
            predicted=racks / distinct,
            measured=forwarded.crossed / direct.crossed,
            tolerance=0.03,
            check="equal",
            statistical=True,
            source="distinct racks over distinct chips of a token",
        ),
    ]
    setup.progress("a slow link between the racks")
    timed, curves = _times(direct.sent * TOKEN_BYTES, same_rack, distinct, setup)
    rows += timed
    slow = next(row.measured for row in timed if row.quantity.startswith("two racks over one"))
    return Experiment(
        name="experts",
        claims=("C40", "C41", "C42", "C43", "C47"),
        rows=tuple(rows),
        findings=(
            f"a token of {PER_TOKEN} experts goes to {total / RANKS / TOKENS:.2f} of {RANKS} chips; forwarding through "
            f"one chip of each rack sends {forwarded.crossed / direct.crossed:.0%} of the bytes between racks",
            f"with links between racks that are 8 times slower, the exchange takes {slow:.1f} times as long as in one",
        ),
        curves=curves,
        axes=("rate between racks over rate inside", "seconds of a dispatch"),
        log_axes=(True, True),
    )


def _times(sent: Bytes, same_rack: Bytes, distinct: float, setup: Setup) -> tuple[list[Reading], tuple[Curve, ...]]:
    """A dispatch over throttled links, against the collective's bytes over their rates."""
    np.fill_diagonal(sent, 0.0)  # what stays on the chip uses no link
    buffer = TOKENS * TOKEN_BYTES * distinct
    up_per_s = buffer / 0.2  # slow enough that waking up of threads does not count
    ratios = (1.0, 2.0, 4.0, 8.0) if setup.quick else (1.0, 2.0, 4.0, 8.0, 16.0)
    two = collectives.all_to_all(collectives.Group(inside=float(CHIPS), outside=float(RACKS)))
    one = collectives.all_to_all(collectives.Group(inside=float(RANKS)))
    measured = [links_s(sent * same_rack, sent * (1.0 - same_rack), up_per_s, up_per_s / ratio) for ratio in ratios]
    predicted = [
        buffer * max(float(two.scale_up_bytes) / up_per_s, float(two.scale_out_bytes) * ratio / up_per_s)
        for ratio in ratios
    ]
    predicted_one = buffer * float(one.scale_up_bytes) / up_per_s
    rows = [
        Reading(
            quantity=f"dispatch, links between racks {ratio:g} times slower",
            unit="s",
            predicted=expected,
            measured=found,
            tolerance=0.15,
            check="equal",
            statistical=True,
            source="bytes of passes.collectives.all_to_all over the slower link",
        )
        for ratio, expected, found in zip(ratios, predicted, measured, strict=True)
    ]
    slow = ratios.index(8.0)
    rows.append(
        Reading(
            quantity="two racks over one, links between racks 8 times slower",
            predicted=predicted[slow] / predicted_one,
            measured=measured[slow] / links_s(sent, np.zeros_like(sent), up_per_s, up_per_s),
            tolerance=0.15,
            check="equal",
            statistical=True,
            source="half of the copies over links of an eighth (C46, C47)",
        )
    )
    curves = (
        Curve(name="dispatch", kind="predicted", x=tuple(1.0 / ratio for ratio in ratios), y=tuple(predicted)),
        Curve(name="dispatch", kind="measured", x=tuple(1.0 / ratio for ratio in ratios), y=tuple(measured)),
    )
    return rows, curves
