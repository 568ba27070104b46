"""`compare`: chips, clusters, models or deployments side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from rackline.api.answer import Answer, asks
from rackline.api.groups import SET, ModelQuestion, Planned
from rackline.api.option import limit, option, shared
from rackline.api.question import question
from rackline.api.resolve import Lookup, lookup_of
from rackline.api.uses import Use, use_lines
from rackline.api.watch import Watch
from rackline.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from rackline.api.option import Limit, Settings, Texts
    from rackline.hardware import Chip, Cluster, RentKind
    from rackline.report.compare_report import Comparison, Side
    from rackline.report.deployments_report import Change
    from rackline.report.figure import Figure


@question
class CompareQuestion(Planned, ModelQuestion):
    """How do chips, clusters, models or deployments compare, each number relative to the first?"""

    ask: ClassVar[str] = "compare"

    names: Texts = option(
        "text",
        "two or more of one kind: chips, clusters, models, or deployments as MODEL@CLUSTER",
        several=True,
        kw_only=False,
    )
    stack: Texts = option(
        "text",
        "serving engines of the deployments, such as vllm,sglang=0.5.6: each deployment under each of them, with "
        "its kernels and its launch rules",
        default=None,
        several=True,
    )
    now: str | None = option(
        "text",
        "today's deployment on the first MODEL@CLUSTER, to compare its plan with: layout and sequences in flight "
        "on a replica, such as tp=8,batch=64; also precision= and mode=",
        default=None,
    )
    tpot: Limit = limit("time per output token of deployments", "30ms", default=None)
    ttft: Limit = limit("time to first token of deployments", "2s", default=None)
    set: Settings = shared(SET, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Things of one kind side by side.

    Args:
        kind: chips, clusters, models or deployments.
        sides: in the order of the names.
        prices: of which kind the prices are, and which are estimated; empty without prices.
        use: what the use of the deployments added to the question; None for other kinds.
        changes: from today's deployment to its plan; empty without today's.
        why: where the cost changes most.
    """

    kind: str
    sides: tuple[Side, ...]
    prices: str = ""
    use: Use | None = None
    changes: tuple[Change, ...] = ()
    why: tuple[str, ...] = ()


def _text(answer: Answer[CompareQuestion, Compared], width: int) -> Iterable[Any]:
    from rackline.report.compare_report import compare_report
    from rackline.report.deployments_report import changes_report, deployments_report, fleets_report

    found = answer.result
    rows = [(side.name, side.deployed, side.values) for side in found.sides if side.deployed is not None]
    if not rows:
        yield compare_report(found.sides, what=found.kind, prices=found.prices, width=width)
        return
    yield deployments_report(rows, prices=found.prices, width=width)
    fleets = fleets_report(rows, width=width)
    if fleets is not None:
        yield ""
        yield fleets
    if found.changes:
        yield ""
        yield changes_report(found.changes, found.why, planned=found.sides[1].name)
    yield from use_lines(found.use)


def _data(answer: Answer[CompareQuestion, Compared]) -> Comparison:
    from rackline.report.compare_report import compare_data

    found = answer.result
    return compare_data(found.sides, what=found.kind, prices=found.prices, changes=found.changes, why=found.why)


def _summary(answer: Answer[CompareQuestion, Compared]) -> str:
    return f"{len(answer.result.sides)} {answer.result.kind}: {', '.join(side.name for side in answer.result.sides)}"


def _rows(answer: Answer[CompareQuestion, Compared]) -> Iterable[Any]:
    return [{"name": side.name, **side.values} for side in answer.result.sides]


def _figure(answer: Answer[CompareQuestion, Compared]) -> Figure:
    from rackline.report.plan_figures import compare_figure

    return compare_figure(answer.result.sides, what=answer.result.kind)


@asks(CompareQuestion, text=_text, summary=_summary, rows=_rows, data=_data, figures={"ratios": _figure})
def compare(question: CompareQuestion, watch: Watch) -> Compared:
    """Chips, clusters, models or deployments side by side, each number over that of the first.

    Example:
        >>> import rackline as rl
        >>> rl.compare(["h100", "b200"])
        <compare: 2 chips: h100-sxm, b200-sxm>
    """
    from rackline.api.deployments import engines_of

    names = question.names
    deployments = any("@" in name for name in names)
    if len(names) < 2 and not (deployments and (question.now is not None or len(engines_of(question)) > 1)):
        allowed = "two or more of one kind; one MODEL@CLUSTER with `stack` vllm,sglang or with `now`"
        raise InputError(what="names", given=" ".join(names), allowed=allowed)
    if deployments:
        return _deployments(question, watch)
    of_deployments = ("stack", "now", "use", "mix", "trace", "traffic", "requests", "users")
    question.refuse(*of_deployments, allowed="only with deployments, MODEL@CLUSTER")
    return _of_the_catalogue(names, question.rent, lookup_of(question, watch))


def _kind_of_prices(chips: Sequence[Chip], rent: str | None) -> RentKind | None:
    """The kind of price that is asked for; else the one that most chips have, None where all have it.

    Raises:
        InputError: an unknown kind.
    """
    if rent is not None:
        from rackline.hardware import parse_rent_kind

        return parse_rent_kind(rent)
    kinds: list[RentKind] = [chip.rent_kind for chip in chips if chip.rent_kind is not None]
    return max(kinds, key=kinds.count) if len(set(kinds)) > 1 else None


def _said(kind: RentKind | None, chips: Sequence[Chip], rents: Sequence[tuple[str, str]]) -> str:
    """Of which kind the prices are, and which are estimated or missing.

    Args:
        rents: (name, price in words) of each side.
    """
    from rackline.hardware import RENT_KINDS

    usual: RentKind | None = next((chip.rent_kind for chip in chips if chip.rent_kind is not None), None)
    shown = kind or usual
    if shown is None:
        return ""
    notes = [f"{name}: {words}" for name, words in rents if "estimated" in words or words.startswith("no price")]
    return "; ".join([f"prices: {RENT_KINDS[shown]}", *notes])


def _chips(chips: Sequence[Chip], rent: str | None) -> Compared:
    from rackline.hardware import rent_of
    from rackline.report.compare_report import chip_side

    kind, words = _kind_of_prices(chips, rent), list[tuple[str, str]]()
    sides: list[Side] = []
    for chip in chips:
        if kind is not None:
            found = rent_of(chip.name, kind)
            words.append((chip.name, found.how if found else "no price is known"))
            chip = replace(chip, usd_per_chip_hour=found.usd_per_chip_hour if found else None)
        sides.append(chip_side(chip))
    return Compared(kind="chips", sides=tuple(sides), prices=_said(kind, chips, words))


def _clusters(clusters: Sequence[Cluster], rent: str | None) -> tuple[list[Cluster], str]:
    """The clusters at prices of one kind, and what is said of them."""
    from rackline.hardware import rented

    chips = [one.chip for one in clusters]
    kind = _kind_of_prices(chips, rent)
    found = list(clusters) if kind is None else [rented(one, kind) for one in clusters]
    return found, _said(kind, chips, [(one.name, one.rent) for one in found])


def _of_the_catalogue(names: tuple[str, ...], rent: str | None, lookup: Lookup) -> Compared:
    """The kind of which all names are, and their sides."""
    from rackline.hardware import chip, cluster
    from rackline.report.compare_report import cluster_side, model_side

    def of_clusters() -> Compared:
        priced, said = _clusters([cluster(name) for name in names], rent)
        return Compared(kind="clusters", sides=tuple(cluster_side(one) for one in priced), prices=said)

    sides: dict[str, Callable[[], Compared]] = {
        "chips": lambda: _chips([chip(name) for name in names], rent),
        "clusters": of_clusters,
        "models": lambda: Compared(kind="models", sides=tuple(model_side(lookup.model(name)) for name in names)),
    }
    missed: dict[str, UnknownNameError] = {}
    best = ("", -1)
    finders: dict[str, Callable[[str], object]] = {"chips": chip, "clusters": cluster, "models": lookup.model}
    for what, find in finders.items():
        seen = 0
        try:
            for name in names:
                find(name)
                seen += 1
        except UnknownNameError as error:
            missed[what] = error
            best = max(best, (what, seen), key=lambda pair: pair[1])
            continue
        return sides[what]()
    if best[1] > 0:  # the first names are of this kind, a later one is not
        raise missed[best[0]]
    raise UnknownNameError(
        what="compare",
        given=names[0],
        allowed="a chip, a cluster, a model (catalogue name or file) or MODEL@CLUSTER",
        nearest=", ".join(near for error in missed.values() if (near := error.nearest)) or None,
    )


def _deployments(question: CompareQuestion, watch: Watch) -> Compared:
    """Plans of MODEL@CLUSTER, at prices of one kind, and today's deployment."""
    from rackline.api.deployments import asked_of, sides_of
    from rackline.hardware import cluster
    from rackline.report.deployments_report import changes, why

    said, rent = "", question.rent
    if question.price is None:
        clusters = [cluster(one.question.on) for one in asked_of(question, rent) if isinstance(one.question.on, str)]
        kind = _kind_of_prices([one.chip for one in clusters], rent)
        said = _clusters(clusters, rent)[1]
        rent = None if kind is None else kind.replace("_", "-")
    sides, use = sides_of(asked_of(question, rent), watch)
    first, second = (side.deployed for side in sides[:2])
    moved: tuple[Change, ...] = ()
    reasons: tuple[str, ...] = ()
    if first is not None and second is not None and first.today:
        moved, reasons = changes(first, second), why(first, second)
    return Compared(kind="deployments", sides=tuple(sides), prices=said, use=use, changes=moved, why=reasons)
