"""Fit collectives: latency, link share and the ramp of mid-size messages, for each group size.

    t = overhead + x + ramp sqrt(overhead x), x = bytes on the wire / (eta_link link)

Expert exchange: a token goes to each of its experts (low latency), or once to each rank and domain that holds one (high
throughput); x is the longer of both levels' links.

A custom all-reduce is the faster of two kernels: one-shot (every rank reads all others: n - 1 times the message) and
two-shot (reduce-scatter, all-gather: 2 (n - 1) / n times, or (n + 1) / n where the switches reduce).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rackline.fitting.fit import MOST_STEPS, drawn_to
from rackline.fitting.solver import (
    Errors,
    Mask,
    Older,
    OlderFit,
    Parameter,
    Values,
    fit,
    leave_out,
    older_fits,
    random_half,
)
from rackline.fitting.tables import RING_CLASSES, Array, Measurements
from rackline.passes import collectives as c
from rackline.passes.features import as_array
from rackline.passes.routing import distinct_ranks
from rackline.passes.row import fastest, line_seconds
from rackline.serving.stack import known_stack

ONE_SHOT, TWO_SHOT = "all_reduce_one_shot", "all_reduce_two_shot"
CUSTOM = "custom_all_reduce"
EXCHANGE = "expert_exchange"
_ALGORITHMS: Mapping[str, Callable[[c.Group], c.CollectiveCost]] = {
    "all_reduce_ring": c.all_reduce_ring,
    "all_gather": c.all_gather,
    "reduce_scatter": c.reduce_scatter,
    "all_to_all": c.all_to_all,
    ONE_SHOT: c.all_reduce_one_shot,
    TWO_SHOT: c.all_reduce_two_shot,
}
_LIBRARIES = ("nccl", "oneccl")
_FEWEST = 6
_PULL = 0.03
_WEAK_PULL = 0.003
_SEEDS = (0, 1, 2, 3)
_MOST_ETA = 1.0

_EXCHANGE_START = {"overhead_s": 6e-5, "eta_link": 0.5, "ramp": 0.4}
_RING_START = {"overhead_s": 1.2e-5, "eta_link": 0.8, "ramp": 0.7}
_CUSTOM_START = {"overhead_s": 5e-6, "eta_link": 0.6, "extra_s": 3e-6, "eta_link_two": 0.75, "ramp_two": 0.4}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFit:
    """Numbers of one collective on one chip and group size.

    Args:
        chip, stack, stack_version: what was measured; the stack of a library (NCCL) is its name.
        op_class: "all_reduce_ring" and so on, or "custom_all_reduce".
        group_size: ranks [count].
        values: parameters.
        errors: errors on the held-out random half.
        oldest_version: oldest version of the stack that it describes.
        older: numbers of versions before that, of a stack's own kernels.
    """

    json_keys: ClassVar = ("chip", "stack", "stack_version", "class=op_class", "group_size", "values", "*errors")

    chip: str
    stack: str
    stack_version: str
    op_class: str
    group_size: int
    values: Values
    errors: Errors
    oldest_version: str = ""
    older: tuple[OlderFit, ...] = ()

    @property
    def is_exchange(self) -> bool:
        """Whether it exchanges tokens of experts."""
        return self.op_class.startswith(("dispatch", "combine"))

    @property
    def of_stack(self) -> bool:
        """Whether it is the stack's own, not the library's: its all-reduce, its exchange of experts."""
        return self.op_class == CUSTOM or self.is_exchange


def wire_bytes(op_class: str, message_bytes: Array, group_size: int | Array, *, in_network: bool = False) -> Array:
    """Bytes that a rank sends [bytes], shape of `message_bytes`: those of the rows of a pass.

    Args:
        op_class: of the collective; "all_reduce_one_shot" sends the whole message to every other rank.
        message_bytes: whole buffer of a rank, as nccl-tests prints its size [bytes].
        group_size: n, ranks [count].
        in_network: whether the switches between them reduce and multicast.

    >>> float(wire_bytes("all_reduce_ring", np.array(8.0), 4)), float(wire_bytes("all_gather", np.array(8.0), 4))
    (12.0, 6.0)
    >>> float(wire_bytes("all_reduce_ring", np.array(8.0), 4, in_network=True))
    10.0
    """
    group = c.Group(inside=as_array(group_size), in_network=in_network)
    return message_bytes * _ALGORITHMS[op_class](group).scale_up_bytes


def exchange_wire_s(
    method: str, columns: Mapping[str, Array], ranks: Array | float, links: tuple[float, float]
) -> Array:
    """Time of one phase of an exchange of experts on the busiest links [s], shape (rows,).

    Args:
        method: low_latency, which copies a token for each of its experts, or high_throughput, which sends it once to
            each domain and from there once to each rank.
        columns: tokens of a rank, d_model, top_k, num_experts, num_nodes, element_bytes.
        ranks: that exchange [count].
        links: bytes/s each way inside a domain and beyond.

    Sources: DeepEP README (low-latency and normal kernels).
    """
    c, n = columns, as_array(ranks) + np.zeros_like(columns["tokens"])
    nodes = c["num_nodes"]
    payload = c["tokens"] * c["d_model"] * c["element_bytes"]
    picks = list(zip(c["num_experts"], c["top_k"], n, nodes, strict=True))
    copies, domains = c["top_k"], c["top_k"]
    if method != "low_latency":
        copies = np.array([float(distinct_ranks(min(r, e), int(e), int(k))) for e, k, r, _ in picks])
        domains = np.array([float(distinct_ranks(min(d, e), int(e), int(k))) for e, k, _, d in picks])
    inside = n / nodes
    within = payload * copies * (inside - 1.0) / inside / links[0]
    return np.maximum(within, payload * domains * (nodes - 1.0) / nodes / links[1])


def ring_seconds(values: Mapping[str, float], wire_s: Array) -> Array:
    """Time of a collective [s]: overhead + x + ramp sqrt(overhead x), x = wire_s / eta_link.

    Args:
        values: overhead_s [s], eta_link, ramp.
        wire_s: bytes on the wire over the link's rate [s].
    """
    return as_array(line_seconds(values["overhead_s"], (wire_s / values["eta_link"],), ramp=values.get("ramp", 0.0)))


def custom_seconds(values: Mapping[str, float], one_shot_s: Array, two_shot_s: Array) -> Array:
    """Time of a custom all-reduce [s]: the faster of one-shot and two-shot.

    Args:
        values: overhead_s [s], eta_link of one-shot; extra_s [s], eta_link_two, ramp_two of two-shot.
        one_shot_s, two_shot_s: bytes on the wire of each over the link's rate [s].
    """
    one = line_seconds(values["overhead_s"], (one_shot_s / values["eta_link"],))
    return fastest((one, ring_seconds(two_shot_values(values), two_shot_s)))


def two_shot_values(values: Mapping[str, float]) -> Values:
    """Numbers of the two-shot kernel alone."""
    return {
        "overhead_s": values["overhead_s"] + values["extra_s"],
        "eta_link": values["eta_link_two"],
        "ramp": values["ramp_two"],
    }


def calibrate_collectives(
    tables: Sequence[Measurements],
    links: Mapping[str, float],
    in_network: Collection[str] = (),
    scale_out: Mapping[str, float] | None = None,
) -> list[CollectiveFit]:
    """Fit all collective tables.

    Args:
        tables: "collective", "custom_all_reduce" and "expert_exchange" tables; others are ignored.
        links: bytes/s each way of the scale-up links of a chip; chips without an entry are ignored.
        in_network: chips whose switches reduce and multicast.
        scale_out: bytes/s each way of a chip beyond its domain.

    Returns:
        One fit per chip, stack, collective and group size.
    """
    ring = [
        t
        for t in tables
        if t.table == "collective" and t.stack in _LIBRARIES and t.chip in links and len(t.seconds) >= _FEWEST
    ]
    custom = [
        t
        for t in tables
        if t.table == CUSTOM
        and (stack := known_stack(t.stack)) is not None
        and stack.kernels.graph_all_reduce == t.labels[0]
        and t.chip in links
        and len(t.seconds) >= _FEWEST
    ]
    exchange = [
        t
        for t in tables
        if t.table == EXCHANGE and t.chip in links and t.chip in (scale_out or {}) and len(t.seconds) >= _FEWEST
    ]

    def model(table: Measurements) -> Model:
        return _model(table, (links[table.chip], (scale_out or {}).get(table.chip, np.inf)), table.chip in in_network)

    out: list[CollectiveFit] = []
    for kind, start in ((ring, _RING_START), (custom, _CUSTOM_START), (exchange, _EXCHANGE_START)):
        by_class: dict[tuple[str, ...], list[Measurements]] = {}
        for table in kind:
            by_class.setdefault((CUSTOM, table.labels[1]) if kind is custom else table.labels, []).append(table)
        for _, members in sorted(by_class.items()):
            out += _fit_alike(members, model, start)
    return out


def _fit_alike(
    tables: Sequence[Measurements], model_of: Callable[[Measurements], Model], start: Values
) -> list[CollectiveFit]:
    """Tables of one collective and group size: each is pulled towards the median of all."""
    models = [model_of(table) for table in tables]
    everything = [np.ones(len(t.seconds), dtype=np.bool_) for t in tables]

    def fit_all(masks: Sequence[Mask]) -> list[Values]:
        loose = [_fit(m, t.seconds, mask, start, _WEAK_PULL) for m, t, mask in zip(models, tables, masks, strict=True)]
        usual = {name: float(np.exp(np.median([np.log(v[name]) for v in loose]))) for name in start}
        return [_fit(m, t.seconds, mask, usual, _PULL) for m, t, mask in zip(models, tables, masks, strict=True)]

    def errors(fits: Sequence[Values], masks: Sequence[Mask]) -> list[Array]:
        of = zip(models, tables, fits, masks, strict=True)
        return [np.abs(model(values)[~mask] / table.seconds[~mask] - 1.0) for model, table, values, mask in of]

    halves = {str(seed): [random_half(len(t.seconds), seed) for t in tables] for seed in _SEEDS}
    held = [fold.scored for fold in leave_out(halves, fit_all, errors)]
    fits: list[CollectiveFit] = []
    for place, (table, values) in enumerate(zip(tables, fit_all(everything), strict=True)):
        unseen = np.concatenate([fold[place] for fold in held])
        nothing = {name: float(name.startswith("eta")) for name in start}  # no latency, the full link
        ideal = np.abs(models[place](nothing) / table.seconds - 1.0)
        # where servers fuse the all-reduce, older tables of the custom one do not describe them
        fused = (record := known_stack(table.stack)) is not None and record.kernels.fused_all_reduce
        own = [
            _older(one, values, model_of(one))
            for one in table.older
            if table.table == CUSTOM and not fused and len(one.seconds) >= _FEWEST
        ]
        oldest, older = older_fits(values, table.stack_version, own)
        fits.append(
            CollectiveFit(
                chip=table.chip,
                stack=table.stack,
                stack_version=table.stack_version,
                op_class=_op_class(table),
                group_size=int(table.labels[-1]),
                values=values,
                errors=Errors(
                    rows=len(table.seconds),
                    median_error=float(np.median(unseen)),
                    p90_error=float(np.quantile(unseen, 0.9)),
                    family_median_error=None,
                    family_p90_error=None,
                    ideal_median_error=float(np.median(ideal)),
                    ideal_p90_error=float(np.quantile(ideal, 0.9)),
                ),
                oldest_version=oldest,
                older=older,
            )
        )
    return fits


def _op_class(table: Measurements) -> str:
    if table.table == EXCHANGE:
        method, phase, _ = table.labels
        return f"{phase}_{method}"
    return CUSTOM if table.table == CUSTOM else RING_CLASSES[table.labels[0]]


def _older(table: Measurements, newest: Values, model: Model) -> Older:
    """An older version's table."""
    target_s = table.seconds if table.newest_s is None else model(newest) * table.seconds / table.newest_s
    return Older(
        stack_version=table.stack_version,
        target_s=target_s,
        predict=model,
        fit=lambda mask, known: _fit(model, target_s, mask, known, _PULL),
    )


Model = Callable[[Mapping[str, float]], Array]


def _model(table: Measurements, links: tuple[float, float], in_network: bool) -> Model:
    if table.table == EXCHANGE:
        method, _, ranks = table.labels
        wire_s = exchange_wire_s(method, table.columns, float(ranks), links)
        return lambda values: ring_seconds(values, wire_s)
    link = links[0]
    message, size = table.columns["message_bytes"], int(table.labels[1])
    if table.table == CUSTOM:
        one, two = (wire_bytes(name, message, size, in_network=in_network) / link for name in (ONE_SHOT, TWO_SHOT))
        return lambda values: custom_seconds(values, one, two)
    wire = wire_bytes(RING_CLASSES[table.labels[0]], message, size, in_network=in_network) / link
    return lambda values: ring_seconds(values, wire)


def _fit(
    model: Callable[[Mapping[str, float]], Array],
    measured_s: Array,
    mask: Mask,
    parent: Mapping[str, float],
    pull: float,
) -> Values:
    terms = drawn_to(parent, pull, [Parameter(name=name, start=value) for name, value in parent.items()])
    log_measured = np.log(measured_s[mask])
    return _capped(
        fit(terms, lambda values: np.log(model(_capped(values))[mask]) - log_measured, max_nfev=MOST_STEPS).values
    )


def _capped(values: Values) -> Values:
    """No link is faster than its peak."""
    return {name: min(value, _MOST_ETA) if name.startswith("eta") else value for name, value in values.items()}
