"""`compare`: chips, clusters or models side by side, and deployments by the cheapest plan of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rackline.api.answer import Answer, Watch, asks
from rackline.api.engines import answered_by, common_engine, engine_inputs
from rackline.api.groups import SET, ModelQuestion, Planned
from rackline.api.plan_parts import PlanQuestion, plan_inputs, plan_question_of
from rackline.api.question import Limit, Settings, Text, Texts, limit, option, question, shared
from rackline.api.resolve import ANY_ENGINE, Lookup, as_published, lookup_of, named, named_engine
from rackline.api.traffic import Use, limits_lines, use_lines, with_use
from rackline.api.verbs import Entry
from rackline.errors import InputError, UnknownNameError, nearest_name, require
from rackline.late import late
from rackline.units import parse_whole

with late:
    from rackline import hardware, parallel, search
    from rackline.parallel import layout as parallel_layout
    from rackline.report import compare_report, deployments_report, plan_figures
    from rackline.search import extensions, inputs, likelihood


@question
class CompareQuestion(Planned, ModelQuestion):
    """How do chips, clusters, models or deployments compare, each number relative to the first?"""

    names: Texts = option(
        "text",
        "two or more of one kind: chips, clusters, models, or deployments as MODEL@CLUSTER",
        several=True,
        kw_only=False,
    )
    engine: Text = option(
        "text",
        "the software that serves the deployments: auto (one engine for all sides where one runs on all chips), any "
        "(the cheapest of each side by estimates), a name such as vllm, or several, such as vllm,sglang=0.5.6: each "
        "deployment under each of them, with its kernels and its launch rules",
        default="auto",
    )
    now: str | None = option(
        "text",
        "the current deployment on the first MODEL@CLUSTER, which its plan is compared with: layout and sequences in "
        "flight per replica, such as tp=8,batch=64; also precision= and mode=",
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
    sides: tuple[compare_report.Side, ...]
    prices: str = ""
    use: Use | None = None
    changes: tuple[compare_report.Change, ...] = ()
    why: tuple[str, ...] = ()


def _text(answer: Answer[CompareQuestion, Compared], width: int) -> Iterable[Any]:
    found = answer.result
    rows = [side for side in found.sides if side.deployed is not None]
    if not rows:
        yield compare_report.compare_report(found.sides, what=found.kind, prices=found.prices, width=width)
        return
    yield from limits_lines(found.use)
    yield deployments_report.deployments_report(rows, prices=found.prices)
    fleets = deployments_report.fleets_report(rows)
    if fleets is not None:
        yield ""
        yield fleets
    if found.changes:
        yield ""
        yield deployments_report.changes_report(found.changes, found.why, planned=found.sides[1].name)
    yield from use_lines(found.use)


def _data(answer: Answer[CompareQuestion, Compared]) -> compare_report.Comparison:
    found = answer.result
    return compare_report.compare_data(
        found.sides, what=found.kind, prices=found.prices, changes=found.changes, why=found.why
    )


@asks(
    CompareQuestion,
    text=_text,
    summary=lambda answer: (
        f"{len(answer.result.sides)} {answer.result.kind}: {', '.join(side.name for side in answer.result.sides)}"
    ),
    rows=lambda answer: [{"name": side.name, **side.values} for side in answer.result.sides],
    data=_data,
    figures={"ratios": lambda answer: plan_figures.compare_figure(answer.result.sides, what=answer.result.kind)},
    simulates=True,
    entry=Entry(
        group="Decide",
        place=1,
        line="Chips, clusters, models or deployments side by side.",
        usual=("engine", "now", "for", "input", "output", "tpot", "ttft", "precision", "layout", "set"),
        request={"names": ["h100-sxm", "b200-sxm"]},
        is_long=True,
        view={
            "id": "compare",
            "place": 6.2,
            "title": "Compare",
            "question": "Which is better, and by how much?",
            "claims": [],
            "figures": ["ratios"],
            "fields": {"names": "h100-sxm;b200-sxm;mi355x;tpu-v7"},
            "presets": [
                {"name": "Chips"},
                {"name": "Clusters", "fields": {"names": "dgx-h100;dgx-b200;gb200-nvl72"}},
                {"name": "Models", "fields": {"names": "llama-3.1-70b;qwen3-32b;deepseek-v3;kimi-k2"}},
                {
                    "name": "Deployments",
                    "live": True,
                    "fields": {
                        "names": "llama-3.1-70b@dgx-h100;llama-3.1-70b@dgx-b200",
                        "input": "4k",
                        "output": "1k",
                    },
                },
            ],
        },
        examples="""
    rackline compare h100 b200 mi355x tpu-v7
    rackline compare dgx-h100 gb200-nvl72
    rackline compare deepseek-v3 deepseek-v3.2 kimi-k3
    rackline compare llama-3.1-70b@dgx-h100 llama-3.1-70b@dgx-b200 --input 4k --output 1k
""",
    ),
)
def compare(question: CompareQuestion, watch: Watch) -> Compared:
    """Chips, clusters, models or deployments side by side, each number over that of the first.

    Example:
        >>> import rackline as rl
        >>> rl.compare(["h100", "b200"])
        <compare: 2 chips: h100-sxm, b200-sxm>
    """

    names = question.names
    deployments = any("@" in name for name in names)
    if len(names) < 2 and not (deployments and (question.now is not None or len(engines_of(question)) > 1)):
        raise InputError(
            what="names",
            given=" ".join(names),
            allowed="two or more of one kind; one MODEL@CLUSTER with `engine` vllm,sglang or with `now`",
        )
    if deployments:
        return _deployments(question, watch)
    of_deployments = ("engine", "now", "use", "mix", "trace", "traffic", "requests", "users")
    question.refuse(*of_deployments, allowed="only with deployments, MODEL@CLUSTER")
    return _of_the_catalogue(names, question.rent, lookup_of(question, watch))


def _kind_of_prices(chips: Sequence[hardware.Chip], rent: str | None) -> hardware.RentKind | None:
    """The kind of price that is asked for; else the one that most chips have, None where all have it.

    Raises:
        InputError: an unknown kind.
    """
    if rent is not None:
        return hardware.parse_rent_kind(rent)
    kinds: list[hardware.RentKind] = [chip.rent_kind for chip in chips if chip.rent_kind is not None]
    return max(kinds, key=kinds.count) if len(set(kinds)) > 1 else None


def _said(kind: hardware.RentKind | None, chips: Sequence[hardware.Chip], rents: Sequence[tuple[str, str]]) -> str:
    """A sentence on the kind of prices used, and on those that are estimated or missing.

    Args:
        rents: (name, price in words) of each side.
    """
    usual: hardware.RentKind | None = next((chip.rent_kind for chip in chips if chip.rent_kind is not None), None)
    shown = kind or usual
    if shown is None:
        return ""
    notes = [f"{name}: {words}" for name, words in rents if "estimated" in words or words.startswith("no price")]
    return "; ".join([f"prices: {hardware.RENT_KINDS[shown]}", *notes])


def _chips(chips: Sequence[hardware.Chip], rent: str | None) -> Compared:
    kind, words = _kind_of_prices(chips, rent), list[tuple[str, str]]()
    sides: list[compare_report.Side] = []
    for chip in chips:
        if kind is not None:
            found = hardware.rent_of(chip.name, kind)
            words.append((chip.name, found.how if found else "no price is known"))
            chip = replace(chip, usd_per_chip_hour=found.usd_per_chip_hour if found else None)
        sides.append(compare_report.chip_side(chip))
    return Compared(kind="chips", sides=tuple(sides), prices=_said(kind, chips, words))


def _clusters(clusters: Sequence[hardware.Cluster], rent: str | None) -> tuple[list[hardware.Cluster], str]:
    """The clusters at prices of one kind, and what is said of them."""
    chips = [one.chip for one in clusters]
    kind = _kind_of_prices(chips, rent)
    found = list(clusters) if kind is None else [hardware.rented(one, kind) for one in clusters]
    return found, _said(kind, chips, [(one.name, one.rent) for one in found])


def _of_the_catalogue(names: tuple[str, ...], rent: str | None, lookup: Lookup) -> Compared:
    """The kind of which all names are, and their sides."""

    def of_clusters(clusters: Sequence[hardware.Cluster]) -> Compared:
        priced, said = _clusters(clusters, rent)
        return Compared(kind="clusters", sides=tuple(map(compare_report.cluster_side, priced)), prices=said)

    kinds: tuple[tuple[Callable[[str], Any], Callable[[list[Any]], Compared]], ...] = (
        (hardware.chip, lambda chips: _chips(chips, rent)),
        (hardware.cluster, of_clusters),
        (lookup.model, lambda models: Compared(kind="models", sides=tuple(map(compare_report.model_side, models)))),
    )
    missed: list[tuple[int, UnknownNameError]] = []
    for find, compared in kinds:
        found: list[Any] = []
        try:
            for name in names:
                found.append(find(name))
        except UnknownNameError as error:
            missed.append((len(found), error))
        else:
            return compared(found)
    most, error = max(missed, key=lambda one: one[0])
    if most > 0:  # the first names are of this kind, a later one is not
        raise error
    raise UnknownNameError(
        what="compare",
        given=names[0],
        allowed="a chip, a cluster, a model (catalogue name or file) or MODEL@CLUSTER",
        nearest=", ".join(near for _, error in missed if (near := error.nearest)) or None,
    )


def _deployments(question: CompareQuestion, watch: Watch) -> Compared:
    """Plans of MODEL@CLUSTER, at prices of one kind, and today's deployment."""
    said, rent = "", question.rent
    if question.price is None:
        clusters = [
            hardware.cluster(one.question.on) for one in asked_of(question, rent) if isinstance(one.question.on, str)
        ]
        kind = _kind_of_prices([one.chip for one in clusters], rent)
        said = _clusters(clusters, rent)[1]
        rent = None if kind is None else kind.replace("_", "-")
    sides, use = sides_of(asked_of(question, rent), watch)
    first, second = (side.deployed for side in sides[:2])
    compared = Compared(kind="deployments", sides=tuple(sides), prices=said, use=use)
    if first is None or second is None or not first.today:
        return compared
    changes, why = deployments_report.changes(first, second), deployments_report.why(first, second)
    return replace(compared, changes=changes, why=why)


_LAYOUT = ("tp", "pp", "ep", "moe_tp", "attention_dp", "attention-dp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """Today's deployment as it was written.

    Args:
        layout: parallel degrees as text.
        batch_size: sequences in flight on one replica [sequences].
        precision, mode: as options of a plan; None for the checkpoint's own, and the engine's own.
    """

    layout: str
    batch_size: int
    precision: str | None = None
    mode: str | None = None


def parse_now(text: str) -> Now:
    """Read "tp=8,batch=64", with precision= and mode= where they are not the usual ones.

    Raises:
        InputError: an unknown part, or no batch.

    >>> parse_now("tp=4,pp=2,batch=64,precision=fp8")
    Now(layout='tp=4,pp=2', batch_size=64, precision='fp8', mode=None)
    """
    known = (*_LAYOUT, "batch", "precision", "mode")
    found: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in known or not (equals and value) or key in found:
            near = nearest_name(key, known)
            raise InputError(
                what="now",
                given=part,
                allowed="a layout, batch, precision and mode, each once, such as tp=8,batch=64,precision=fp8",
                nearest=near and f"{near}={value or 1}",
            )
        found[key] = value
    require(
        "batch" in found,
        what="now",
        given=text,
        allowed="with the sequences in flight on a replica",
        nearest=f"{text},batch=64",
    )
    degrees = ",".join(f"{key}={value}" for key, value in found.items() if key in _LAYOUT)
    return Now(
        layout=degrees or "tp=1",
        batch_size=parse_whole(found["batch"], name="now batch"),
        precision=found.get("precision"),
        mode=found.get("mode"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One deployment of a comparison: its name, its question, and what runs where it is not a plan.

    Args:
        engine: that the comparison names; empty for auto and any.
    """

    name: str
    engine: str
    question: PlanQuestion
    now: Now | None = None


def engines_of(question: CompareQuestion) -> list[str]:
    """Return the engines that are named, one by one; auto or any alone."""
    return [name.strip() for name in question.engine.split(",") if name.strip()]


def asked_of(question: CompareQuestion, rent: str | None) -> list[Asked]:
    """Every name under every engine, today's deployment before the plan of the first.

    Raises:
        InputError: a name that is not MODEL@CLUSTER; several engines with one calibration.
    """
    engines = engines_of(question)
    for engine in engines:
        require(
            named_engine(engine) not in ("", ANY_ENGINE) or len(engines) == 1,
            what="engine",
            given=question.engine,
            allowed=f"either {engine} or names of engines",
        )
    require(
        len(engines) == 1 or question.calibration == "auto",
        what="calibration",
        given=question.calibration,
        allowed="auto with several engines: each has its own",
    )
    now = None if question.now is None else parse_now(question.now)
    found: list[Asked] = []
    for name in question.names:
        model, separator, on = name.rpartition("@")
        require(separator and model and on, what="deployment", given=name, allowed="MODEL@CLUSTER, for all names")
        for engine in engines:
            one = plan_question_of(question, model=model, on=on, rent=rent, engine=engine)
            own = "" if named_engine(engine) in ("", ANY_ENGINE) else engine
            label = f"{name} {own}".strip()
            if now is not None and not found:
                found.append(Asked(name=f"{label} today", engine=own, question=one, now=now))
            found.append(Asked(name=label, engine=own, question=one))
    return found


def sides_of(asked: Sequence[Asked], watch: Watch) -> tuple[list[compare_report.Side], Use]:
    """Plans, and today's deployment; with what the use of the first added to the question.

    Raises:
        RacklineError: as `plan`.
    """
    full, uses = zip(*(with_use(one.question) for one in asked), strict=True)
    full = on_one_engine(full, watch)
    searched = [_inputs(each, watch) for each in full]  # refuses before anything is searched
    plans: list[tuple[inputs.PlanInputs, search.Plan]] = []
    for one, each, given in zip(reversed(asked), reversed(full), reversed(searched), strict=True):
        with watch.moving(f"planning {one.name}"):
            if one.now is None:
                taken = answered_by(each, given, watch, of=one.name if len(asked) > 1 else "")
                plans.append((taken.asked, taken.plan))
            else:  # on the engine of the plan that it is compared with
                running = plan_inputs(_as_it_runs(each, one.now, plans[-1][0]), watch)
                plans.append((running, _running(running, one.now)))
    sides: list[compare_report.Side] = []
    for one, (given, found) in zip(asked, reversed(plans), strict=True):
        engine = one.engine or given.system.stack.name
        known = likelihood.intervals_of(found.best, found.system) if found.best else []
        sides.append(
            compare_report.deployment_side(
                one.name,
                found,
                engine=engine,
                bands={each.metric: compare_report.Band(low=each.low, high=each.high) for each in known},
                fleet=extensions.plan_fleet(given.traffic, found, given.prefill_cluster, given.users),
                today=one.now is not None,
            )
        )
    return sides, uses[0]


def on_one_engine(questions: Sequence[PlanQuestion], watch: Watch) -> list[PlanQuestion]:
    """Return questions that are answered with the same engine where they name none and one can serve all of them.

    The engine is noted. Where there is no such engine, each question has its own default.
    """
    if any(one.engine != "auto" or one.calibration != "auto" for one in questions):
        return list(questions)
    pairs = [named(one, watch) for one in questions]
    if any(cluster.calibration for _, cluster in pairs):
        return list(questions)
    engine = common_engine([as_published(one, *pair, watch) for one, pair in zip(questions, pairs, strict=True)])
    if not engine:
        watch.takes("each deployment has its own engine: none of the catalogue runs on all of these chips (--engine)")
        return list(questions)
    watch.takes(f"engine {engine} for all deployments (--engine)")
    return [replace(one, engine=engine) for one in questions]


def _inputs(question: PlanQuestion, watch: Watch) -> list[inputs.PlanInputs]:
    """Return what is searched for one deployment: its engine alone, or all of them for the cheapest."""
    return engine_inputs(question, watch) if question.engine == ANY_ENGINE else [plan_inputs(question, watch)]


def _as_it_runs(question: PlanQuestion, now: Now, planned: inputs.PlanInputs) -> PlanQuestion:
    """Return today's deployment, on the engine that is named, else the one of its plan."""
    known = named_engine(question.engine) not in ("", ANY_ENGINE) or question.calibration != "auto"
    usual = "auto" if planned.system.cluster.calibration else planned.system.stack.name
    return replace(
        question,
        engine=question.engine if known else usual,
        layout=now.layout,
        precision=(now.precision or "native",),
        mode=None if now.mode is None else (now.mode,),
        serving="aggregated",
        any_layout=True,
        tpot=None,
        ttft=None,
        confidence=None,
    )


def _running(given: inputs.PlanInputs, now: Now) -> search.Plan:
    """Today's deployment with its sequences always in flight.

    Raises:
        InputError: sequences that do not spread evenly over ranks and stages.
    """
    import numpy as np

    model, cluster = given.system.model, given.system.cluster
    layout: parallel.Layout = parallel.parse_layout(now.layout, model)
    parallel_layout.check(layout, model, cluster.num_chips)
    ranks = layout.attention_dp * layout.pp
    if now.batch_size % ranks:
        near = max(round(now.batch_size / ranks), 1) * ranks
        raise InputError(
            what="now batch",
            given=now.batch_size,
            allowed=f"a multiple of {ranks}, its attention-dp ranks and pipeline stages",
            nearest=str(near),
        )
    space = replace(
        given.space,
        layouts=[layout],
        batches=np.array([now.batch_size // ranks], dtype=float),
        modes=given.space.modes or [given.system.stack.scheduler.mode()],
    )
    return search.plan(given.system, given.demand, space, prefill=None, served=False)
