"""Requests and traffic that a price sheet is made for: their lengths, and the fleet that serves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan

import numpy as np

from rackline.api.plan import searched
from rackline.api.plan_parts import PlanQuestion, plan_inputs, plan_question_of, traffic_of
from rackline.api.price_question import PriceQuestion
from rackline.api.question import defaults
from rackline.api.selling import SearchedWays
from rackline.api.traffic import mixture_of
from rackline.api.uses import Use, record_of, with_use
from rackline.api.watch import Watch
from rackline.errors import InputError
from rackline.late import late

with late:
    from rackline import pricing
    from rackline.pricing import costs, offered
    from rackline.search import fleet as search_fleet
    from rackline.serving import workload


USUAL_OUTPUT, USUAL_TPOT_S = 1000.0, 0.05
_TRAFFIC = ("traffic", "requests", "users")


def requests_of(question: PriceQuestion) -> tuple[PriceQuestion, Use | None, workload.Mixture | None]:
    """The question with its answers' length and its limit, what a use gave, and the lengths of the requests.

    Raises:
        InputError: lengths that are given in two ways, prompts beyond the last context tier.
    """
    use, mixture = None, mixture_of(question, "output")
    if mixture is not None:
        question = replace(question, output=mixture.mean(mixture.output_len))
    if question.use is not None:
        question, use = with_use(question)
        output_len = question.output or USUAL_OUTPUT
        prompts = np.array([record_of(question.use).input_len])
        mixture = mixture or workload.Mixture.of(1.0, prompts, np.array([output_len]), name=use.name)
    elif question.tpot is None:
        question = replace(question, tpot=USUAL_TPOT_S)
    if question.output is None:
        question = replace(question, output=USUAL_OUTPUT)
    longest = float(mixture.input_len.max()) if mixture is not None else 0.0
    last = max(question.contexts)
    if longest > last:
        tiers = ",".join(f"{step:.0f}" for step in (*question.contexts, longest))
        allowed = f"tiers that hold every prompt, up to {longest:,.0f} tokens"
        raise InputError(what="contexts", given=f"{last:.0f}", allowed=allowed, nearest=tiers)
    return question, use, mixture


def fleet_question(question: PriceQuestion) -> PlanQuestion | None:
    """The plan whose fleet serves the traffic of a question; None without traffic.

    Raises:
        InputError: two kinds of traffic, an option of traffic without it, a utilisation beside it.
    """
    files = question.mix is not None or question.trace is not None
    first = min(question.contexts)
    plain = question.use is None and not files
    one = plan_question_of(
        question,
        output=None if files else question.output,
        **({"input": _mean_prompt(first)} if plain else {}),
    )

    traffic, _ = traffic_of(one, workload.Workload(input_len=1.0, output_len=max(question.output or 2.0, 2.0)))
    if traffic is None:
        return None
    if question.utilisation != defaults(type(question))["utilisation"]:
        (name,) = question.given(*_TRAFFIC)
        allowed = f"either a utilisation or `{name}`, from which it follows"
        raise InputError(what="utilisation", given=question.utilisation, allowed=allowed)
    return one


def _mean_prompt(until_len: float) -> float:
    return costs.PromptLengths(from_len=0.0, until_len=until_len).mean


def sold_to(
    one: PlanQuestion, sheet: pricing.Offered, ways: SearchedWays, steps: Sequence[float], watch: Watch
) -> pricing.Offered:
    """The sheet at the utilisation that traffic leaves: its requests pay the rent of their fleet with the margin.

    Args:
        one: the plan of the fleet.
        ways: to which the sheet's prices belong, at any utilisation.
        steps: longest prompt of each context tier [tokens].
    """
    full, _ = with_use(one)
    asked = plan_inputs(full, watch)
    with watch.moving("planning the fleet that serves the traffic"):
        found = searched(asked)
    fleet, work, best = (
        search_fleet.plan_fleet(asked.traffic, found, None, asked.users),
        asked.demand.workload,
        found.best,
    )
    if fleet is None or fleet.usd_per_hour is None or best is None:
        watch.warn(f"no fleet serves this traffic, utilisation is assumed: {found.reason}")
        return sheet
    of_one = workload.Mixture.of(1.0, np.array([work.input_len]), np.array([work.output_len]))
    mixture = work.mixture or of_one
    paid = sheet.request_usd(mixture, work.cache_hit)
    if paid is None or isnan(paid):
        watch.warn("some of these requests are not sold, utilisation is assumed")
        return sheet
    terms, rate = sheet.terms, fleet.traffic.tokens_per_s / work.output_len
    needed = fleet.usd_per_hour / 3600.0 * (1.0 + terms.margin)
    used = min(terms.utilisation * paid * rate / needed, 1.0)
    again = pricing.offer_prices(ways, sheet.rent, replace(terms, utilisation=used), steps=steps)
    return replace(
        again,
        demand=offered.Demand(
            fleet=fleet,
            engine=best.label(),
            input_len=work.input_len,
            cached_len=work.cached_tokens,
            output_len=work.output_len,
            request_usd=again.request_usd(mixture, work.cache_hit) or paid,
        ),
    )
