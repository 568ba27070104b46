"""Whether somebody's results can be true: checks of each row, and of the rows of one machine together.

Three kinds of check, each with a number and a bound. *Identities* hold by definition between what a row itself reports:
Little's law, tokens over duration, rates per user and chip (`audit_checks.toml`). *Bounds* are physics: the pass of the
stated requests at the peak of the chips, the memory that holds them. *Spread* compares with what measured servers
deviate from their predictions (`audit_spread.toml`): a row is implausible where fewer than `RARE` of them lie beyond.

A bound holds for what is stated. Where something that the row does not exclude would lift it (drafts, a cache of
prefixes, fewer requests in flight, another unit), the row is explained if that was so.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np

from rackline.display.axes import Layer, Measure, Row, colour, hovered, log_axis, nothing_figure
from rackline.display.figure import Figure
from rackline.errors import RacklineError
from rackline.files import shipped_toml
from rackline.fitting.solver import grouped
from rackline.parallel import Deployment
from rackline.passes import Batch
from rackline.units import several
from rackline.validation.cases import Case, Predicted
from rackline.validation.predict import Predictor
from rackline.validation.reported import Reported
from rackline.validation.resolve import Resolver

Verdict = Literal["impossible", "explained", "implausible", "plausible"]
VERDICTS: tuple[Verdict, ...] = ("impossible", "explained", "implausible", "plausible")
RARE = 0.004  # share of measured servers beyond which a row is implausible
_CERTAIN = 0.95  # of a roofline, whose experts are chosen uniformly
_SLOWEST = 0.975  # share of servers, and of machines, that a slow machine is beyond
FEWEST_ROWS = 4  # rows of a machine that are judged together
_SAME = 2e-5  # relative difference of two figures that are the same
_COMPARED = ("tpot_s", "ttft_s", "output_tokens_per_s")
_REQUEST_RATES = (
    "requests_per_s", "output_tokens_per_s / output_len", "total_tokens_per_s / sum_len", "concurrency / request_s",
)  # fmt: skip
_SCALES = {1e3: "milliseconds read as seconds", 1e-3: "seconds read as milliseconds", 60.0: "seconds read as minutes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A product of reported quantities that is 1 by definition; fields as in `audit_checks.toml`."""

    key: str
    title: str
    products: tuple[str, ...]
    low: float
    high: float
    never: float
    low_means: str
    high_means: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A bound on a row: what would lift it, up to which amount; fields as in `audit_checks.toml`."""

    key: str
    title: str
    explain: str
    limit: float
    source: str
    unit: str = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Measured over predicted of measured servers.

    Args:
        metric: of the servings, such as tpot_s, or "machine tpot_s" for medians over the rows of a machine.
        count: servers or machines.
        shares: of them that lie below each ratio.
        ratios: measured over predicted, ascending.
    """

    metric: str
    count: int
    shares: tuple[float, ...]
    ratios: tuple[float, ...]

    def beyond(self, ratio: float) -> float:
        """Share of them that are further out on the side of a ratio, at least one in twice their number."""
        at = float(np.interp(math.log(ratio), np.log(self.ratios), self.shares))
        # none of them was further out: as rare as one in twice their number
        return max(min(at, 1.0 - at), 0.5 / self.count)

    def ratio_at(self, share: float) -> float:
        """The ratio below which a share of them lies."""
        return float(np.exp(np.interp(share, self.shares, np.log(self.ratios))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A check that a row does not pass.

    Args:
        key, title: of the check.
        number, bound: what the row reports, and what it may be at the most or the least.
        verdict: that follows from it alone.
        text: why, or what would explain it.
        source: of the bound.
        unit: of number and bound: "s", "B" or "1".
    """

    json_keys: ClassVar = ("check=key", "title", "number", "bound", "unit", "verdict", "text", "source")

    key: str
    title: str
    number: float
    bound: float
    verdict: Verdict
    text: str
    source: str
    unit: str = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """A row with what speaks against it.

    Args:
        row: as reported.
        findings: checks that it does not pass, the worst first.
        passed: checks that it passes [count].
        ratios: measured over predicted by quantity.
        beyond: the least share of measured servers further out, over its quantities; None where nothing is predicted.
        lacks: why there is no prediction; empty where there is one.
    """

    json_keys: ClassVar = (
        "id=row.row_id", "where=row.where", "verdict", "findings", "passed", "ratios", "beyond", "not_predicted=lacks",
    )  # fmt: skip

    row: Reported
    findings: tuple[Finding, ...]
    passed: int
    ratios: Mapping[str, float] = field(default_factory=dict[str, float])
    beyond: float | None = None
    lacks: str = ""

    @property
    def verdict(self) -> Verdict:
        """The worst of its findings."""
        found = {one.verdict for one in self.findings}
        return next(one for one in VERDICTS if one in (*found, "plausible"))


@cache
def identities() -> tuple[Identity, ...]:
    """All identities of `audit_checks.toml`."""
    entries: list[dict[str, Any]] = shipped_toml("rackline.validation", "audit_checks.toml")["identity"]
    return tuple(Identity(products=tuple(one.pop("products")), **one) for one in entries)


@cache
def checks() -> Mapping[str, Check]:
    """All bounds of `audit_checks.toml` by key."""
    return {one["key"]: Check(**one) for one in shipped_toml("rackline.validation", "audit_checks.toml")["check"]}


@cache
def spreads() -> Mapping[str, Spread]:
    """What measured servers deviate by, from `audit_spread.toml`."""
    entries: list[dict[str, Any]] = shipped_toml("rackline.validation", "audit_spread.toml")["spread"]
    return {
        one["metric"]: Spread(**dict(one, shares=tuple(one["shares"]), ratios=tuple(one["ratios"]))) for one in entries
    }


def machines(rows: Sequence[Audited]) -> dict[tuple[str, ...], list[Audited]]:
    """Rows with a prediction, by machine."""
    return grouped((one for one in rows if one.ratios), lambda one: one.row.machine)


def _all_values(row: Reported) -> dict[str, float]:
    """What a row reports, and what follows: the time of a request, the tokens of one."""
    values = dict(row.values)
    if {"ttft_s", "tpot_s", "output_len"} <= set(values):
        values["request_s"] = values["ttft_s"] + (values["output_len"] - 1.0) * values["tpot_s"]
    elif "e2e_s" in values:
        values["request_s"] = values["e2e_s"]
    elif {"tpot_s", "output_len"} <= set(values) and "ttft_s" not in values:
        values["request_s"] = values["output_len"] * values["tpot_s"]
    if {"input_len", "output_len"} <= set(values):
        values["sum_len"] = values["input_len"] + values["output_len"]
    return values


def _product(text: str, values: Mapping[str, float]) -> float | None:
    """A product such as "a b / c d"; None where a factor is not reported."""
    above, _, below = text.partition("/")
    names = [(name, 1) for name in above.split()] + [(name, -1) for name in below.split()]
    if any(name not in values for name, _ in names):
        return None
    return math.prod(values[name] ** power for name, power in names)


def _identities(row: Reported) -> Iterator[Finding | None]:
    values = _all_values(row)
    rounds = values.get("requests", math.inf) / values.get("concurrency", 1.0)
    for one in identities():
        found = [value for text in one.products if (value := _product(text, values)) is not None]
        if not found:
            continue
        low = one.low * min(1.0, rounds / 5.0) if one.key in ("little", "reached") else one.low
        number = min(found, key=lambda value: abs(math.log(value)))
        if one.key == "little":  # each way to count them must hold
            number = max(found, key=lambda value: abs(math.log(value)))
        if low <= number <= one.high:
            yield None
            continue
        slow = number < low
        bound = low if slow else one.high
        off = bound / number if slow else number / bound
        scale = next((f"{text}; or " for by, text in _SCALES.items() if 0.75 < number * by < 1.3), "")
        verdict: Verdict = "impossible" if off > one.never else "implausible"
        if one.key == "reached" or (one.key == "little" and slow and number > 0.02):
            verdict = "explained"
        yield Finding(key=one.key, title=one.title, number=number, bound=bound, verdict=verdict, source=one.source,
                      text=scale + (one.low_means if slow else one.high_means))  # fmt: skip


def _finding(key: str, number: float, bound: float, verdict: Verdict, *explained: float | str) -> Finding:
    check = checks()[key]
    return Finding(key=key, title=check.title, number=number, bound=bound, verdict=verdict,
                   text=check.explain.format(*explained), source=check.source, unit=check.unit)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Auditor:
    """Audits rows; deployments and engines are built once.

    Args:
        spread: of measured servers; shipped by default.
        rare: share of measured servers beyond which a row is implausible [1].
    """

    spread: Mapping[str, Spread] = field(default_factory=lambda: spreads())
    rare: float = RARE
    _ideal: Predictor = field(default_factory=lambda: Predictor(Resolver("unit")))
    _usual: Predictor = field(default_factory=lambda: Predictor(Resolver("auto")))

    def audit(self, rows: Sequence[Reported]) -> tuple[Audited, ...]:
        """All rows, with the checks of each and of the machines they share."""
        cases = [one.case for one in rows if one.case is not None and one.case.kind not in ("observed", "requests")]
        found = dict(zip(map(id, cases), self._usual.predict_all(cases), strict=True))
        audited = [self._row(row, found.get(id(row.case))) for row in rows]
        more: dict[int, list[Finding]] = defaultdict(list)
        for at, finding in (*_copied(rows), *self._slow_machines(audited)):
            more[at].append(finding)
        return tuple(
            replace(one, findings=tuple(sorted((*one.findings, *more[at]), key=lambda f: VERDICTS.index(f.verdict))))
            for at, one in enumerate(audited)
        )

    def _row(self, row: Reported, predicted: Predicted | None) -> Audited:
        done: list[Finding | None] = [*_identities(row), *_simple(row)]
        lacks = row.lacks
        ratios: dict[str, float] = {}
        if row.case is not None:
            try:
                done += list(self._bounds(row, row.case))
            except (RacklineError, ValueError) as error:
                lacks = str(error)
        if isinstance(predicted, dict):
            both = [key for key in _COMPARED if key in row.values and predicted.get(key, 0.0) > 0.0]
            ratios = {key: row.values[key] / predicted[key] for key in both}
        elif predicted is not None:
            lacks = lacks or str(predicted)
        if row.case is not None and row.case.kind != "serve":
            ratios = {f"{row.case.kind} {key}": value for key, value in ratios.items()}
        shares = {key: self.spread[key].beyond(ratio) for key, ratio in ratios.items() if key in self.spread}
        done += [self._rare(row, key, ratios[key], share) for key, share in shares.items()]
        findings = tuple(one for one in done if one is not None)
        return Audited(row=row, findings=findings, passed=len(done) - len(findings), ratios=ratios,
                       beyond=min(shares.values(), default=None), lacks=lacks)  # fmt: skip

    def _rare(self, row: Reported, key: str, ratio: float, share: float) -> Finding | None:
        if share >= self.rare:
            return None
        chips = row.values.get("num_chips", 1.0)
        scales = {1.0 / by: text for by, text in _SCALES.items()}
        if chips > 1.0 and "per_s" in key:
            scales |= {
                chips: "the rate of one chip is given as that of all",
                1 / chips: "a rate of all is given per chip",
            }
        usual = self.spread[key]
        text = next((text for by, text in scales.items() if usual.beyond(ratio * by) > 0.1), "")
        if not text and ratio < 1.0 and key == "ttft_s" and not row.texts.get("prefix"):
            text = f"a cache that holds {1.0 - ratio:.0%} of the prompt's tokens, which nobody mentions"
        few = f"less than {share:.2%} of {usual.count} measured servers are further from their prediction"
        at = usual.ratio_at(self.rare if ratio < 1.0 else 1.0 - self.rare)
        return Finding(key="spread", title=f"{key} measured over predicted", number=ratio, bound=at,
                       verdict="explained" if text else "implausible", text="; ".join(filter(None, (text, few))),
                       source="audit_spread.toml")  # fmt: skip

    def _bounds(self, row: Reported, case: Case) -> Iterator[Finding | None]:
        """Physics: memory, and passes at the peak of the chips."""
        if case.kind != "serve":
            return
        values = row.values
        deployment = self._ideal.resolver.deployments(case)[0]
        stack = self._ideal.resolver.stack(case)
        context = values["input_len"] + 0.5 * values["output_len"]
        yield from _memory(deployment, values, context)
        engine, layout = self._ideal.engine(deployment, stack), deployment.layout
        ranks = layout.attention_dp * layout.dp
        in_flight = values["concurrency"]
        if {"ttft_s", "tpot_s"} <= set(values):  # those that wait for a first token do not decode
            later = (values["output_len"] - 1.0) * values["tpot_s"]
            in_flight *= later / (later + values["ttft_s"])
        sequences = max(in_flight / (ranks * layout.pp), 1.0)
        said = row.texts.get("speculative", "unknown").lower() in ("none", "off", "no")
        tpot = values.get("tpot_s")
        if tpot is not None:
            decode = Batch(
                decode_sequences=sequences, context_len=context, group_tokens=sequences * layout.attention_dp
            )
            least = _CERTAIN * engine.table.time(decode).seconds
            needed = least / tpot
            lifted = needed <= checks()["decode"].limit and not said
            yield (
                None
                if tpot >= least
                else _finding("decode", tpot, least, "explained" if lifted or needed < 1.15 else "impossible", needed)
            )
        chunk = values["input_len"]
        together = 16.0  # prompts of one pass, so that weights hardly count
        prompt = Batch(prefill_sequences=1.0, chunk_tokens=chunk, group_tokens=chunk)
        many = Batch(
            prefill_sequences=together, chunk_tokens=chunk, group_tokens=together * chunk * layout.attention_dp
        )
        alone_s = _CERTAIN * engine.table.time(prompt).seconds * layout.pp
        each_s = engine.table.time(many).seconds / (together * ranks)
        if "ttft_s" in values:
            yield (
                None
                if values["ttft_s"] >= alone_s
                else _finding("prefill", values["ttft_s"], alone_s, "explained", 1.0 - values["ttft_s"] / alone_s)
            )
        every = _all_values(row)
        rates = [value for text in _REQUEST_RATES if (value := _product(text, every)) is not None]
        if rates:
            busy = _CERTAIN * max(rates) * each_s
            yield None if busy <= 1.0 else _finding("work", busy, 1.0, "explained", 1.0 - 1.0 / busy)

    def _slow_machines(self, rows: Sequence[Audited]) -> Iterator[tuple[int, Finding]]:
        """Machines whose rows are all slow, and the resource that explains it."""
        places = {id(one): at for at, one in enumerate(rows)}
        for group in machines(rows).values():
            found: dict[str, float] = {}
            for key in ("tpot_s", "ttft_s"):
                own = [one.ratios[key] for one in group if key in one.ratios]
                known = self.spread.get(f"machine {key}")
                if len(own) >= FEWEST_ROWS and known and np.quantile(own, 0.1) > 1.0:
                    found[key] = float(np.median(own))
            known = [self.spread[key].ratio_at(_SLOWEST) for key in ("machine tpot_s", "tpot_s") if key in self.spread]
            ratio, bound = found.get("tpot_s", 0.0), max(known, default=math.inf)
            if ratio <= bound:
                continue
            chips = max(one.row.values.get("num_chips", 1.0) for one in group)
            first = found.get("ttft_s", 0.0) > 1.3
            what = "a chip that is throttled: prompts and steps are slow alike" if first else "slow memory"
            if chips > 1 and not first:
                what = "a limited link between its chips, or slow memory: steps are slow and prompts are not"
            for one in group:
                yield places[id(one)], _finding("machine", ratio, bound, "explained", what)


def _memory(deployment: Deployment, values: Mapping[str, float], context: float) -> Iterator[Finding | None]:
    layout = deployment.layout
    requests = values["concurrency"] / layout.dp
    use = deployment.memory(sequences=requests, context_len=context)
    weights, room = float(np.asarray(use.weight_total)), use.total
    if weights > room:
        yield _finding("memory", weights, room, "impossible")
        return
    yield None
    cache = float(np.asarray(use.kv_cache))
    fit = requests * layout.dp * (room - weights) / max(cache, 1.0)
    share = fit / values["concurrency"]
    if cache + weights <= room or not {"ttft_s", "tpot_s"} <= set(values):
        yield None
        return
    # of those in flight at most `fit` hold a cache: the others wait for their first token
    waiting = values["ttft_s"] / (values["ttft_s"] + (values["output_len"] - 1.0) * values["tpot_s"])
    verdict: Verdict = "impossible" if share < 0.6 and waiting < 0.3 * (1.0 - share) else "explained"
    yield None if waiting >= 0.7 * (1.0 - share) else _finding("cache-room", weights + cache, room, verdict, fit)


def _simple(row: Reported) -> Iterator[Finding | None]:
    """Bounds between two fields of a row."""
    values = row.values
    if {"ttft_s", "tpot_s"} <= set(values):
        ratio = values["ttft_s"] / values["tpot_s"]
        yield None if ratio >= 0.5 else _finding("order", ratio, 0.5, "explained", 1.0 / ratio)
    if {"requests", "concurrency"} <= set(values):
        rounds = values["requests"] / values["concurrency"]
        limit = checks()["burst"].limit
        yield None if rounds >= limit else _finding("burst", rounds, limit, "explained", rounds)


def _copied(rows: Sequence[Reported]) -> Iterator[tuple[int, Finding]]:
    """Rows whose times are those of another row with other settings."""
    keys = ("tpot_s", "ttft_s", "output_tokens_per_s", "e2e_s", "total_tokens_per_s")
    seen: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for at, row in enumerate(rows):
        known = [(name, row.values[name]) for name in keys if name in row.values]
        if len([value for _, value in known if float(f"{value:.3g}") != value]) >= checks()["copied"].limit:
            seen[tuple(round(math.log(value) / _SAME) for _, value in known)].append(at)

    def settings(row: Reported) -> tuple[object, ...]:
        sizes = (row.values.get(name) for name in ("concurrency", "input_len", "output_len", "num_chips"))
        return (*sizes, *(row.texts.get(name) for name in ("model", "chip", "stack", "precision", "layout")))

    for places in seen.values():
        if len({settings(rows[at]) for at in places}) > 1:
            for at in places:
                yield at, _finding("copied", float(len(places)), 1.0, "implausible", len(places))


_RATIO = Measure(field="ratio", title="measured over predicted", kind="number")
_TITLE = "Results against their predictions"


def audit_figure(rows: Sequence[Audited]) -> Figure:
    """Measured over predicted of each row and quantity, coloured by the verdict on the row."""
    points: list[Row] = [
        {"row": one.row.row_id, "quantity": key, "ratio": ratio, "verdict": one.verdict,
         "why": one.findings[0].text if one.findings else ""}
        for one in rows for key, ratio in one.ratios.items()
    ]  # fmt: skip
    if not points:
        return nothing_figure(_TITLE, "no row says enough of its deployment to be predicted")
    x = log_axis(_RATIO, [*(point["ratio"] for point in points), 0.5, 2.0])
    y: Layer = {"field": "quantity", "type": "nominal", "title": None, "axis": {"ticks": False}}
    spread: Layer = {"field": "row", "type": "nominal", "axis": None}
    encoding: Layer = {"x": x, "y": y, "yOffset": spread, "color": colour(VERDICTS, "verdict")}
    shown = [Measure(field="row", title="row"), Measure(field="verdict", title="verdict"), _RATIO,
             Measure(field="why", title="because")]  # fmt: skip
    words = ", ".join(f"{sum(one.verdict == name for one in rows)} {name}" for name in VERDICTS)
    return Figure(
        title=_TITLE,
        subtitle="one point a row and quantity; 1 is as predicted",
        description=f"Measured over predicted of {several(len(rows), 'row')}: {words}.",
        spec={"data": {"values": points}, "layer": [hovered({"type": "point", "filled": True}, encoding, shown)]},
        width=520,
        height=110 * len({point["quantity"] for point in points}),
    )
