"""`budget`: size, tokens and lifetime cost of a model of a given quality."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from rackline.api.answer import Answer, Watch, asks
from rackline.api.groups import PRICE
from rackline.api.question import ClusterLike, MaybeNumber, Number, Question, Settings, option, question, shared
from rackline.api.resolve import assignments, cluster_of
from rackline.api.verbs import Entry
from rackline.errors import InputError, RacklineError, UnknownNameError, nearest_name, require
from rackline.late import late
from rackline.units import format_count, format_percent, parse_count

with late:
    from rackline import arch, catalog, scaling
    from rackline.report import budget_report

MOST_TOKENS = 1e21
MOST_PARAMS = 1e18
DEFAULT_LAW, DEFAULT_JOINT_LAW = "besiroglu", "ludziejewski"
_MIXTURE = re.compile(r"^(?P<total>[^@]+?)-a(?P<active>[^@]+)@(?P<tokens>.+)$", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The model whose quality is wanted: its parameters and the tokens that it was trained on."""

    total_params: float
    active_params: float
    tokens: float


def quality_of(text: str) -> Quality:
    """Read SIZE@TOKENS, TOTAL-aACTIVE@TOKENS or NAME@TOKENS.

    Raises:
        InputError: another form.
    """
    size, at, tokens = text.rpartition("@")
    require(
        at and size and tokens, what="quality_of", given=text, allowed="SIZE@TOKENS such as 70b@15T", nearest="70b@15T"
    )
    count = _amount(tokens, "tokens of `quality_of`", MOST_TOKENS)
    name = size.strip()
    if re.match(r"^[\d.+-]", name):
        mixture = _MIXTURE.match(text)
        if mixture is None:
            params = _amount(name, "size of `quality_of`", MOST_PARAMS)
            return Quality(total_params=params, active_params=params, tokens=count)
        total = _amount(mixture["total"], "size of `quality_of`", MOST_PARAMS)
        active = _amount(mixture["active"], "active size of `quality_of`", MOST_PARAMS)
        if active > total:
            raise InputError(
                what="quality_of",
                given=text,
                allowed="TOTAL-aACTIVE@TOKENS; a model is not smaller than its active part",
                nearest=f"{mixture['active']}-a{mixture['total']}@{tokens}",
            )
        return Quality(total_params=total, active_params=active, tokens=count)

    found = arch.model(name)
    is_dense = isinstance(found, arch.Model) and not found.is_moe  # laws count all parameters of a dense model
    active = found.total_params if is_dense else found.active_params
    return Quality(total_params=found.total_params, active_params=active, tokens=count)


def laws_of(
    name: str | None, wanted: Quality | None, experts: float, *, mixture: bool
) -> tuple[scaling.LossLaw, scaling.LossLaw]:
    """The law of the wanted model and that of the new one: the same but for their numbers of experts.

    Raises:
        InputError: an unknown law, or one that knows nothing of mixtures for a mixture.
    """
    if name is not None and name.endswith(".csv"):
        require(
            not mixture and (wanted is None or wanted.total_params <= wanted.active_params),
            what="law",
            given=name,
            allowed="ludziejewski for mixtures: these runs are of dense models",
        )
        fitted = scaling.fit_file(name).law
        return fitted, fitted
    of_wanted = 1.0
    if wanted is not None and wanted.total_params > wanted.active_params:
        of_wanted = float(scaling.routed_num_experts(wanted.total_params, wanted.active_params))
    joint = mixture or of_wanted > 1.0
    try:
        if joint:
            known = name or DEFAULT_JOINT_LAW
            return scaling.joint_law(of_wanted, known), scaling.joint_law(experts, known)
        law = scaling.loss_law(name or DEFAULT_LAW)
    except UnknownNameError as error:
        laws = catalog.names("laws")
        allowed = f"{', '.join(laws)}, a TOML file or a CSV file of losses"
        near = nearest_name(name or "", laws)
        raise InputError(what="law", given=name or "", allowed=allowed, nearest=near) from error
    except RacklineError as error:
        if name is None or joint:
            raise
        try:
            law = scaling.joint_law(1.0, name)
        except RacklineError:
            kinds = "a law of loss against size and tokens, or a joint law of experts"
            raise InputError(what="law", given=name, allowed=kinds, nearest=DEFAULT_JOINT_LAW) from error
    return law, law


def _amount(text: str, name: str, maximum: float) -> float:
    """A count in which 70b means 70B and 15t means 15T."""
    spelled = text.strip()
    spelled = spelled[:-1] + spelled[-1:].upper() if spelled[-1:] in ("b", "t", "m") else spelled
    return parse_count(spelled, name=name, minimum=1.0, maximum=maximum)


DAYS_PER_MONTH = 30.0
DAY_S = 86400.0
USE_OVER_PRETRAIN_MFU = 0.3  # the lecture's estimate, C86


@question
class BudgetQuestion(Question):
    """How large a model to train, on how many tokens, when it is going to be used?"""

    quality_of: str | None = option(
        "text",
        "model whose loss is the target: SIZE@TOKENS such as 70b@15T, TOTAL-aACTIVE@TOKENS for a mixture of "
        "experts such as 671b-a37b@14.8T, or NAME@TOKENS with a catalogue name",
        default=None,
    )
    loss: MaybeNumber = option(
        "count",
        "target loss in nats per token, instead of `quality_of`",
        default=None,
        unit="nat/token",
        maximum=100.0,
    )
    traffic: Number = option(
        "count",
        "tokens per second that the deployed model generates, such as 50M",
        default="0",
        unit="token/s",
        zero=True,
        maximum=1e15,
    )
    months: Number = option(
        "count", "lifetime in deployment, in months of 30 days", default="2", unit="month", maximum=1200.0
    )
    input_over_output: Number = option(
        "count", "prompt tokens per generated token", default="0", unit="1", zero=True, maximum=1e6
    )
    rl: Number = option(
        "count",
        "reinforcement learning tokens, such as 10T",
        default="0",
        unit="token",
        zero=True,
        maximum=MOST_TOKENS,
    )
    rl_flop: Number = option(
        "count",
        "FLOP per parameter and reinforcement learning token: 2 if no rollout is trained on, 6 if all are",
        default="3",
        unit="FLOP",
        minimum=2.0,
        maximum=6.0,
    )
    moe: MaybeNumber = option(
        "count",
        "train a mixture of experts with this ratio of total to active experts (256 experts, 8 active: 32)",
        default=None,
        unit="count",
        minimum=1.0,
        maximum=1e5,
    )
    unique_tokens: MaybeNumber = option(
        "count",
        "unique training tokens available; beyond these, data is repeated",
        default=None,
        unit="token",
        minimum=1.0,
    )
    ship_probability: Number = option("fraction", "probability that the model is deployed", default="1", unit="1")
    mfu: Number = option("fraction", "model FLOP utilisation (MFU) of pre-training", default="40%", unit="1")
    rl_mfu: MaybeNumber = option(
        "fraction", "MFU of reinforcement learning; 0.3 × `mfu` by default", default=None, unit="1"
    )
    serve_mfu: MaybeNumber = option("fraction", "MFU of generation; 0.3 × `mfu` by default", default=None, unit="1")
    law: str | None = option(
        "text",
        "scaling law: besiroglu, chinchilla, chinchilla-unrounded, muennighoff, sardana, a TOML file, or a "
        "CSV file of measured losses (columns params, tokens, loss) to fit; ludziejewski for mixtures of "
        "experts",
        default=None,
    )
    on: ClusterLike = option(
        "object", "cluster that sets chip peak and price: catalogue name or TOML file", default="dgx-h100"
    )
    precision: str = option("text", "data type of the peak FLOP rate", default="bf16")
    price: MaybeNumber = shared(PRICE, default=None)
    set: Settings = option(
        "settings", "KEY=VALUE replaces a number of the cluster or chip; may be repeated", default=None
    )
    runs: bool = option(
        "switch",
        "list known training runs instead: over-training, the inference that justifies it, goodput",
        default=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgeted:
    """The optimum for a quality.

    Args:
        budget: size, tokens and cost.
        asked: the quality or loss, in the words of the question.
        chip: whose peak counts.
    """

    json_keys: ClassVar = ("*budget",)

    budget: scaling.Budget
    asked: str
    chip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRuns:
    """Known training runs under a loss law.

    Args:
        law: its name.
        runs: each with its over-training.
    """

    law: str
    runs: tuple[scaling.KnownRun, ...]


def _text(answer: Answer[BudgetQuestion, Budgeted | KnownRuns], width: int) -> Iterable[Any]:
    found = answer.result
    if isinstance(found, KnownRuns):
        yield budget_report.runs_report(found.runs, law=found.law)
    else:
        yield budget_report.budget_report(
            found.budget,
            asked=f"quality of {found.asked}" if answer.question.quality_of else found.asked,
            on=f"{found.chip}, {answer.question.precision}",
            width=width,
        )


def _summary(answer: Answer[BudgetQuestion, Budgeted | KnownRuns]) -> str:
    found = answer.result
    if isinstance(found, KnownRuns):
        return f"{len(found.runs)} known training runs under {found.law}"
    if not found.budget.feasible:
        return f"no size reaches {found.asked}: {found.budget.optimum.reason}"
    best = found.budget.optimum
    return (
        f"{format_count(float(best.params))} active parameters on {format_count(float(best.tokens))} tokens reach "
        f"{found.asked} at the least cost, {found.budget.overtraining_factor:.1f}x over-trained"
    )


def _interval(answer: Answer[BudgetQuestion, Budgeted | KnownRuns]) -> str:
    """How flat the optimum is."""
    found = answer.result
    if isinstance(found, KnownRuns) or not found.budget.feasible:
        return ""
    within, (low, high) = max(found.budget.flat.items())
    return f"Sizes of {format_count(low)} to {format_count(high)} cost at most {format_percent(within)} more"


def _rows(answer: Answer[BudgetQuestion, Budgeted | KnownRuns]) -> Iterable[Any]:
    found = answer.result
    return found.runs if isinstance(found, KnownRuns) else found.budget.phases


def _drawable(answer: Answer[BudgetQuestion, Budgeted | KnownRuns]) -> Budgeted:
    if isinstance(answer.result, KnownRuns):
        raise InputError(what="plot", given="known runs", allowed="a budget, without `runs`")
    return answer.result


def _refuse(question: BudgetQuestion, outputs: frozenset[str]) -> None:
    require(
        not question.runs or "plot" not in outputs, what="plot", given="known runs", allowed="a budget, without `runs`"
    )


@asks(
    BudgetQuestion,
    text=_text,
    summary=_summary,
    rows=_rows,
    figures={
        "lifetime": lambda answer: budget_report.lifetime_figure(
            _drawable(answer).budget, asked=_drawable(answer).asked
        ),
        "quality": lambda answer: budget_report.quality_figure(_drawable(answer).budget, asked=_drawable(answer).asked),
    },
    interval=_interval,
    refuse=_refuse,
    entry=Entry(
        group="Decide",
        place=6,
        line="How large a model to train, on how many tokens.",
        usual=("quality_of", "loss", "traffic", "months", "rl", "moe", "unique_tokens", "on", "runs"),
        request={"quality_of": "70b@15T"},
        sweep_s=0.5,
        view={
            "id": "over-training",
            "place": 12,
            "title": "Over-training",
            "question": "How much longer than Chinchilla should one train?",
            "claims": ["C81", "C83", "C84", "C85", "C89", "C93", "C94", "C95"],
            "figures": ["lifetime", "quality"],
            "fields": {"quality_of": "70b@15T", "traffic": "50M", "months": "12", "ship_probability": "1"},
            "drawn": {
                "lifetime": "Cost over life at one quality",
                "quality": "Sizes and tokens that reach the same quality",
            },
            "sliders": {
                "traffic": {"low": 100000.0, "high": 10000000000.0, "points": 81, "unit": "tokens/s"},
                "months": {"low": 1, "high": 100, "unit": "months"},
            },
        },
        examples="""
    rackline budget --quality-of 70b@15T --traffic 50M --months 2
    rackline budget --quality-of 70b@15T --traffic 50M --months 2 \\
      --rl 10T --moe 32 --plot budget.svg
    rackline budget --loss 1.95 --traffic 1M --unique-tokens 20T --json
    rackline budget --runs
""",
    ),
)
def budget(question: BudgetQuestion, watch: Watch) -> Budgeted | KnownRuns:
    """How large a model to train, on how many tokens, when it is going to be used.

    Finds the size and tokens that reach a quality with the least cost of pre-training, reinforcement learning and use
    together, and shows what each phase costs, how far the model is over-trained and how flat the optimum is.

    Example:
        >>> import rackline as rl
        >>> rl.budget(quality_of="70b@15T", traffic="50M", months=2)
        <budget: ...B active parameters on ...T tokens reach ...>
    """
    usual = USE_OVER_PRETRAIN_MFU * question.mfu
    shares = scaling.PhaseMfu(pretrain=question.mfu, rl=question.rl_mfu or usual, inference=question.serve_mfu or usual)
    if question.runs:
        law, _ = laws_of(question.law, None, 1.0, mixture=False)
        return KnownRuns(law=law.name, runs=tuple(scaling.known_runs(law, shares.inference / shares.pretrain)))
    if (question.quality_of is None) == (question.loss is None):
        raise InputError(
            what="`quality_of` or `loss`",
            given="both" if question.loss is not None else "neither",
            allowed="exactly one",
            nearest="`quality_of` 70b@15T",
        )

    overrides: dict[str, object] = dict(assignments(question.set))
    if question.price is not None:
        overrides["usd_per_chip_hour"] = question.price
    cluster = cluster_of(question.on, overrides)
    experts = question.moe or 1.0
    wanted = quality_of(question.quality_of) if question.quality_of is not None else None
    rate, time_s = question.traffic, question.months * DAYS_PER_MONTH * DAY_S
    generated = scaling.lifetime_tokens(rate, time_s, question.ship_probability) if rate > 0.0 else 0.0
    with watch.moving("fitting the loss law"):
        of_wanted, of_new = laws_of(question.law, wanted, experts, mixture=question.moe is not None)
    answer = scaling.budget(
        of_new,
        float(scaling.loss(of_wanted, wanted.active_params, wanted.tokens)) if wanted else question.loss or 0.0,
        scaling.Usage(
            inference_tokens=generated,
            prompt_tokens=generated * question.input_over_output,
            rl_tokens=question.rl,
            rl_flop_per_param_token=question.rl_flop,
        ),
        mfu=shares,
        peak_flop_per_s=cluster.chip.flop_per_s(question.precision),
        usd_per_chip_hour=cluster.usd_per_chip_hour,
        num_experts=experts,
        unique_tokens=question.unique_tokens,
    )
    return Budgeted(budget=answer, asked=question.quality_of or f"loss {question.loss:g}", chip=cluster.chip.full_name)
