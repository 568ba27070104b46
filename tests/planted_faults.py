"""Faults planted into measured rows: what goes wrong in published tables, each as a change of a complete report.

Sources publish times only, so that the other columns of a report (rates, totals, duration) are computed from them, with
1 % of noise each and four digits, before a fault is planted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from rackline.validation.reported import Reported

Values = dict[str, float]
_NOISE = 0.01
ROUNDS = 10.0


def reported(row: Reported, rng: np.random.Generator) -> Reported:
    """The complete report of a measured row, as a load generator would write it."""
    v = dict(row.values)
    e2e_s = v["ttft_s"] + (v["output_len"] - 1.0) * v["tpot_s"]
    requests = ROUNDS * v["concurrency"]
    per_s = v["concurrency"] / e2e_s
    more = {
        "e2e_s": e2e_s, "requests": requests, "duration_s": requests / per_s, "requests_per_s": per_s,
        "output_tokens_per_s": per_s * v["output_len"], "user_tokens_per_s": 1.0 / v["tpot_s"],
        "total_tokens_per_s": per_s * (v["input_len"] + v["output_len"]), "output_tokens": requests * v["output_len"],
        "input_tokens": requests * v["input_len"], "peak_concurrency": v["concurrency"],
        "tokens_per_s_per_chip": per_s * v["output_len"] / v["num_chips"],
    }  # fmt: skip
    exact = ("requests", "peak_concurrency")
    noisy = {key: value if key in exact else float(f"{value * (1 + _NOISE * rng.normal()):.4g}")
             for key, value in more.items()}  # fmt: skip
    return replace(row, values={**v, **noisy})


_RATES = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s", "tokens_per_s_per_chip")


def faster(v: Values, by: float, *, decode: float | None = None) -> Values:
    """All of a report consistent with a server that is so much faster."""
    step = by if decode is None else decode
    v = {**v, "ttft_s": v["ttft_s"] / by, "tpot_s": v["tpot_s"] / step}
    e2e_s = v["ttft_s"] + (v["output_len"] - 1.0) * v["tpot_s"]
    gain = v["e2e_s"] / e2e_s
    return v | {"e2e_s": e2e_s, "duration_s": v["duration_s"] / gain, "user_tokens_per_s": 1.0 / v["tpot_s"],
                **{key: v[key] * gain for key in _RATES}}  # fmt: skip


def _scaled(key: str, by: float) -> Callable[[Values], Values]:
    return lambda v: {**v, key: v[key] * by}


def _several(by: float, *keys: str) -> Callable[[Values], Values]:
    return lambda v: {**v, **{key: v[key] * by for key in keys}}


def _swapped(one: str, other: str) -> Callable[[Values], Values]:
    return lambda v: {**v, one: v[other], other: v[one]}


FAULTS: dict[str, Callable[[Values], Values]] = {
    "tpot in ms as s": _scaled("tpot_s", 1e3),
    "tpot in s as ms": _scaled("tpot_s", 1e-3),
    "ttft in ms as s": _scaled("ttft_s", 1e3),
    "ttft in s as ms": _scaled("ttft_s", 1e-3),
    "duration in ms as s": _scaled("duration_s", 1e3),
    "requests a minute": _scaled("requests_per_s", 60.0),
    "ttft and tpot swapped": _swapped("ttft_s", "tpot_s"),
    "lengths swapped": _swapped("input_len", "output_len"),
    "request time as tpot": lambda v: {**v, "tpot_s": v["e2e_s"]},
    "output rate is that of all tokens": lambda v: {**v, "output_tokens_per_s": v["total_tokens_per_s"]},
    "total is that of outputs, per chip of all": lambda v: {
        **v, "tokens_per_s_per_chip": 2.0 * v["output_tokens_per_s"]},
    "rate counted twice": _scaled("output_tokens_per_s", 2.0),
    "rates of half the run": _several(0.5, "output_tokens_per_s", "total_tokens_per_s"),
    "rate of a user of all": lambda v: {**v, "user_tokens_per_s": 3.0 * v["output_tokens_per_s"]},
    "characters as tokens": _several(4.0, "output_tokens", "output_tokens_per_s"),
    "concurrency doubled": _scaled("concurrency", 2.0),
    "concurrency halved": _scaled("concurrency", 0.5),
    "concurrency never reached": lambda v: {
        **v, **{key: 0.4 * v[key] for key in _RATES}, "duration_s": v["duration_s"] / 0.4,
        "peak_concurrency": np.ceil(0.4 * v["concurrency"]) if v["concurrency"] > 1 else 0.4},
    "failed requests count": _scaled("requests", 1.5),
    "warm-up left out of the duration": _scaled("duration_s", 0.7),
    "best second for the mean": _several(1.6, *_RATES),
    "burst of one round": lambda v: {**v, "requests": v["concurrency"], "duration_s": v["e2e_s"],
                                     **{key: v[key] / ROUNDS for key in ("output_tokens", "input_tokens")}},
    "prompts cut": _scaled("input_tokens", 0.5),
    "cache of prefixes": lambda v: faster(v, 12.0, decode=1.0),
    "drafts": lambda v: faster(v, 1.0, decode=3.0),
    "another chip": lambda v: faster(v, 5.0),
    "weights do not fit": lambda v: v,
    "copied rows": lambda v: v,
    "throttled chip": lambda v: faster(v, 1 / 1.8),
    "limited link": lambda v: faster(v, 1.0, decode=1 / 1.8),
}  # fmt: skip
"""Fault → the values of a report that has it; the last four act on several rows or on the deployment."""
OF_MACHINES = ("throttled chip", "limited link")


def planted(fault: str, table: Sequence[Reported], at: int, rng: np.random.Generator) -> list[Reported]:
    """Rows of a report with a fault in row `at`, which comes first; those of machines are in all rows.

    Args:
        table: measured rows of one machine.
    """
    row = reported(table[at], rng)
    change = FAULTS[fault]
    if fault in OF_MACHINES:
        rows = [reported(one, rng) for one in (table[at], *(one for n, one in enumerate(table) if n != at))]
        return [_with(one, change(dict(one.values))) for one in rows]
    if fault == "copied rows":
        other = reported(table[(at + 1) % len(table)], rng)
        keys = ("tpot_s", "ttft_s", "e2e_s", "output_tokens_per_s", "total_tokens_per_s")
        return [row, _with(other, {**other.values, **{key: row.values[key] for key in keys}})]
    if fault == "weights do not fit":
        assert row.case is not None
        small = replace(row.case, model="deepseek-ai/DeepSeek-R1", num_chips=1, layout={}, precision="bf16")
        chip = {"num_chips": 1.0, "tokens_per_s_per_chip": row.values["output_tokens_per_s"]}
        return [replace(row, case=small, values={**row.values, **chip})]
    return [_with(row, change(dict(row.values)))]


def _with(row: Reported, values: Values) -> Reported:
    """A row with other values, and a case that states them."""
    assert row.case is not None
    case = replace(row.case, values={**row.case.values, **{
        key: values[key] for key in ("input_len", "output_len", "concurrency")
    }, "length_distribution": "fixed"})  # fmt: skip
    return replace(row, values=values, case=case)
