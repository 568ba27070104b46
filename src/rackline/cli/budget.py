"""`rackline budget`: size, tokens and cost of a model of a quality, trained once and used for long."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rackline.cli.options import Json, MaybeValue, On, Overrides, Value
from rackline.cli.plot import PlotFile, PlotLook, read_plot
from rackline.cli.screen import print_json, progress, screen
from rackline.errors import InputError, RacklineError, UnknownNameError, nearest_names
from rackline.units import parse_count, parse_fraction, parse_usd_per_hour

if TYPE_CHECKING:
    from rackline.scaling import LossLaw, PhaseMfu, Usage

DAYS_PER_MONTH = 30.0
DAY_S = 86400.0
MOST_TOKENS = 1e21
MOST_PARAMS = 1e18
DEFAULT_LAW, DEFAULT_JOINT_LAW = "besiroglu", "ludziejewski"
USE_OVER_PRETRAIN_MFU = 0.3  # the lecture's estimate, C86
_MIXTURE = re.compile(r"^(?P<total>[^@]+?)-a(?P<active>[^@]+)@(?P<tokens>.+)$", re.I)


def budget(
    *,
    quality_of: MaybeValue = None,
    loss: MaybeValue = None,
    serve: Value = "0",
    months: Value = "2",
    prompts: Value = "0",
    rl: Value = "0",
    rl_flop: Value = "3",
    moe: MaybeValue = None,
    unique_tokens: MaybeValue = None,
    ship_probability: Value = "1",
    mfu: Value = "40%",
    rl_mfu: MaybeValue = None,
    serve_mfu: MaybeValue = None,
    law: str | None = None,
    on: On = "dgx-h100",
    precision: str = "bf16",
    price: MaybeValue = None,
    sets: Overrides = None,
    runs: Annotated[bool, Parameter(name="--runs", negative=())] = False,
    json: Json = False,
    plot: PlotFile = None,
    plot_kind: str | None = None,
    plot_theme: PlotLook = "auto",
) -> None:
    """How large a model to train, on how many tokens, when it is going to be used.

    Finds the size and tokens that reach a quality with the least cost of pre-training, reinforcement learning and use
    together, and shows what each phase costs, how far the model is over-trained and how flat the optimum is.

    Args:
        quality_of: a model whose loss is to be reached: SIZE@TOKENS such as 70b@15T, TOTAL-aACTIVE@TOKENS for a mixture
            such as 671b-a37b@14.8T, or NAME@TOKENS with a name of the catalogue
        loss: the loss itself, in nats per token, in place of --quality-of
        serve: tokens that the model generates per second while it is in use, such as 50M
        months: how long it is in use, in months of 30 days
        prompts: prompt tokens read for each generated one
        rl: tokens of reinforcement learning, such as 10T
        rl_flop: FLOP per parameter and token of reinforcement learning: 2 if no rollout is trained on, 6 if each is
        moe: train a mixture of so many experts of which one is active (256 experts, 8 active: 32)
        unique_tokens: different tokens that there are; more are repeats
        ship_probability: chance that the model is put to use
        mfu: share of the peak that pre-training reaches
        rl_mfu: share of the peak of reinforcement learning; 0.3 of --mfu by default
        serve_mfu: share of the peak of generation; 0.3 of --mfu by default
        law: loss law: besiroglu, chinchilla, chinchilla-unrounded, muennighoff, sardana, a TOML file, or a CSV file of
            measured losses (columns params, tokens, loss) to fit one to; for mixtures ludziejewski
        on: cluster whose chips and price count: catalogue name or TOML file
        precision: data type whose peak counts
        price: price of a chip, in USD an hour
        sets: KEY=VALUE replaces a number of the cluster or chip; may be repeated
        runs: list known training runs instead: over-training, use that justifies it, goodput
        json: print JSON (SI units) and nothing else
        plot_kind: lifetime (cost over life against size; default) or quality (sizes and tokens of one loss)
    """
    drawing = read_plot(plot, "rackline.report.budget_figures:FIGURES", plot_kind, plot_theme)
    shares = _mfu(mfu, rl_mfu, serve_mfu)
    if runs:
        _print_runs(law, shares.inference / shares.pretrain, json=json)
        return
    if (quality_of is None) == (loss is None):
        given = "both" if loss is not None else "neither"
        raise InputError(
            what="--quality-of or --loss", given=given, allowed="exactly one", nearest="--quality-of 70b@15T"
        )

    from rackline.cli.options import assignments
    from rackline.hardware import cluster
    from rackline.scaling import budget as find_budget

    overrides: dict[str, object] = dict(assignments(sets))
    if price is not None:
        overrides["usd_per_chip_hour"] = parse_usd_per_hour(price, name="--price")
    rack = cluster(on, overrides or None)
    experts = parse_count(moe, name="--moe", minimum=1.0, maximum=1e5) if moe is not None else 1.0
    wanted = _wanted(quality_of) if quality_of is not None else None
    usage = _usage(serve, months, prompts, rl, rl_flop, ship_probability)
    unique = parse_count(unique_tokens, name="--unique-tokens", minimum=1.0) if unique_tokens is not None else None
    peak = rack.chip.flop_per_s(precision)
    with progress("fitting the loss law"):
        of_wanted, of_new = _laws(law, wanted, experts, mixture=moe is not None)
    target = _target(of_wanted, wanted, loss)
    answer = find_budget(
        of_new,
        target,
        usage,
        mfu=shares,
        peak_flop_per_s=peak,
        usd_per_chip_hour=rack.usd_per_chip_hour,
        num_experts=experts,
        unique_tokens=unique,
    )
    asked = f"quality of {quality_of}" if quality_of is not None else f"loss {loss}"
    if drawing is not None:
        drawing.write(answer, asked=quality_of or f"loss {loss}")
    if json:
        print_json(answer.as_dict())
        return
    from rackline.report.budget_report import budget_report

    out = screen()
    out.print(budget_report(answer, asked=asked, on=f"{rack.chip.full_name}, {precision}", width=out.width))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The model whose quality is wanted."""

    total_params: float
    active_params: float
    tokens: float


def _wanted(text: str) -> _Wanted:
    """Read SIZE@TOKENS, TOTAL-aACTIVE@TOKENS or NAME@TOKENS."""
    size, at, tokens = text.rpartition("@")
    if not (at and size and tokens):
        raise InputError(what="--quality-of", given=text, allowed="SIZE@TOKENS such as 70b@15T", nearest="70b@15T")
    count = _amount(tokens, "tokens of --quality-of", MOST_TOKENS)
    name = size.strip()
    if re.match(r"^[\d.+-]", name):
        mixture = _MIXTURE.match(text)
        if mixture is None:
            params = _amount(name, "size of --quality-of", MOST_PARAMS)
            return _Wanted(total_params=params, active_params=params, tokens=count)
        total = _amount(mixture["total"], "size of --quality-of", MOST_PARAMS)
        active = _amount(mixture["active"], "active size of --quality-of", MOST_PARAMS)
        if active > total:
            raise InputError(
                what="--quality-of",
                given=text,
                allowed="TOTAL-aACTIVE@TOKENS; a model is not smaller than its active part",
                nearest=f"{mixture['active']}-a{mixture['total']}@{tokens}",
            )
        return _Wanted(total_params=total, active_params=active, tokens=count)
    from rackline.arch import Model, model

    found = model(name)
    if isinstance(found, Model) and not found.is_moe:  # laws count all parameters of a dense model
        return _Wanted(total_params=found.total_params, active_params=found.total_params, tokens=count)
    return _Wanted(total_params=found.total_params, active_params=found.active_params, tokens=count)


def _amount(text: str, name: str, maximum: float) -> float:
    """A count in which 70b means 70B and 15t means 15T."""
    spelled = text.strip()
    spelled = spelled[:-1] + spelled[-1:].upper() if spelled[-1:] in ("b", "t", "m") else spelled
    return parse_count(spelled, name=name, minimum=1.0, maximum=maximum)


def _mfu(mfu: str, rl_mfu: str | None, serve_mfu: str | None) -> PhaseMfu:
    from rackline.scaling import PhaseMfu

    def share(text: str, name: str) -> float:
        return parse_fraction(text, name=name, zero_allowed=False)

    pretrain = share(mfu, "--mfu")
    return PhaseMfu(
        pretrain=pretrain,
        rl=share(rl_mfu, "--rl-mfu") if rl_mfu is not None else USE_OVER_PRETRAIN_MFU * pretrain,
        inference=share(serve_mfu, "--serve-mfu") if serve_mfu is not None else USE_OVER_PRETRAIN_MFU * pretrain,
    )


def _usage(serve: str, months: str, prompts: str, rl: str, rl_flop: str, ship_probability: str) -> Usage:
    from rackline.scaling import Usage, lifetime_tokens

    rate = parse_count(serve, name="--serve", zero_allowed=True, maximum=1e15)
    time_s = parse_count(months, name="--months", maximum=1200.0) * DAYS_PER_MONTH * DAY_S
    p = parse_fraction(ship_probability, name="--ship-probability", zero_allowed=False)
    generated = lifetime_tokens(rate, time_s, p) if rate > 0.0 else 0.0
    return Usage(
        inference_tokens=generated,
        prompt_tokens=generated * parse_count(prompts, name="--prompts", zero_allowed=True, maximum=1e6),
        rl_tokens=parse_count(rl, name="--rl", zero_allowed=True, maximum=MOST_TOKENS),
        rl_flop_per_param_token=parse_count(rl_flop, name="--rl-flop", minimum=2.0, maximum=6.0),
    )


def _laws(name: str | None, wanted: _Wanted | None, experts: float, *, mixture: bool) -> tuple[LossLaw, LossLaw]:
    """The law of the wanted model and that of the new one: the same but for their numbers of experts."""
    from rackline.scaling import fit_file, joint_law, loss_law, routed_num_experts

    if name is not None and name.endswith(".csv"):
        if mixture or (wanted is not None and wanted.total_params > wanted.active_params):
            raise InputError(
                what="--law", given=name, allowed="ludziejewski for mixtures: these runs say nothing of experts"
            )
        fitted = fit_file(name).law
        return fitted, fitted
    of_wanted = 1.0
    if wanted is not None and wanted.total_params > wanted.active_params:
        of_wanted = float(routed_num_experts(wanted.total_params, wanted.active_params))
    if mixture or of_wanted > 1.0:
        try:
            return joint_law(of_wanted, name or DEFAULT_JOINT_LAW), joint_law(experts, name or DEFAULT_JOINT_LAW)
        except UnknownNameError as error:
            raise _unknown_law(name or "") from error
    try:
        law = loss_law(name or DEFAULT_LAW)
    except UnknownNameError as error:
        raise _unknown_law(name or "") from error
    except RacklineError:
        if name is None:
            raise
        law = joint_law(1.0, name)
    return law, law


def _unknown_law(name: str) -> InputError:
    from rackline.catalog import names

    known = names("laws")
    near = nearest_names(name, known, 1)
    return InputError(
        what="--law",
        given=name,
        allowed=f"{', '.join(known)}, a TOML file or a CSV file of losses",
        nearest=near[0] if near else None,
    )


def _target(law: LossLaw, wanted: _Wanted | None, loss: str | None) -> float:
    """The loss to reach."""
    from rackline.scaling import loss as loss_of

    if wanted is not None:
        return float(loss_of(law, wanted.active_params, wanted.tokens))
    return parse_count(loss or "", name="--loss", maximum=100.0)


def _print_runs(law: str | None, inference_relative_mfu: float, *, json: bool) -> None:
    from rackline.scaling import known_runs

    found, _ = _laws(law, None, 1.0, mixture=False)
    rows = known_runs(found, inference_relative_mfu)
    if json:
        print_json({"law": found.name, "runs": [run.as_dict() for run in rows]})
        return
    from rackline.report.budget_report import runs_report

    screen().print(runs_report(rows, law=found.name))
