"""`rackline tiers`, `rackline price`, `rackline infer-prices`: what things cost, what to charge, what prices reveal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rackline.cli.options import (
    MOST_SECONDS,
    MOST_USD,
    Json,
    MaybeValue,
    On,
    Overrides,
    Value,
    find_calibration,
    memory_fraction,
    read_figure_file,
    read_layouts,
    read_model_and_cluster,
    read_precisions,
    tokens,
)
from rackline.cli.screen import print_json, progress, screen
from rackline.errors import InputError
from rackline.units import parse_count, parse_fraction, parse_seconds, parse_usd_per_hour

if TYPE_CHECKING:
    from rackline.arch import AnyModel
    from rackline.hardware import Cluster
    from rackline.parallel import Deployment
    from rackline.pricing import Rent

_MOST_MARGIN = 1000.0


def tiers(
    model: str,
    /,
    *,
    on: On,
    prompt: Annotated[Value, Parameter(name="--prompt")] = "8k",
    held: Annotated[list[str] | None, Parameter(name="--held", negative=())] = None,
    reuses: Value = "1",
    within: MaybeValue = None,
    margin: Value = "30%",
    utilisation: Value = "60%",
    layout: str | None = None,
    precision: str = "native",
    calibration: str = "auto",
    price: MaybeValue = None,
    sets: Overrides = None,
    json: Json = False,
    plot: str | None = None,
) -> None:
    """Where to keep the KV cache of a prompt: chip memory, host memory, CXL, flash, disk, or compute it again.

    Prints the cheapest tier by how long the entry is held, the break-even times, the tier that the drain-time rule
    picks, and what a write, a hit and storage should cost.

    Args:
        model: catalogue name, Hugging Face id, TOML file or config.json
        on: cluster: catalogue name or TOML file
        prompt: tokens of the entry, such as 8k
        held: how long it is held, such as 5min; may be repeated; 5 minutes, an hour and a day by default
        reuses: how often it is brought back while it is held
        within: longest wait for it, such as 100ms; slower tiers are left out
        margin: of the prices shown, over cost
        utilisation: share of the chip-hours that are sold
        layout: parts that are fixed, such as tp=8; else the cheapest for this prompt
        precision: native, bf16, fp8, fp4, mxfp4, int8, int4, or in parts such as fp8,kv=bf16
        calibration: auto, trtllm, vllm, sglang, generic, unit (ideal roofline) or a TOML file
        price: price of a chip, in USD an hour
        sets: KEY=VALUE replaces a number of the model, cluster or chip; may be repeated
        json: print JSON (SI units) and nothing else
        plot: write cost over hold time to FILE.html, .svg or .png
    """
    file = read_figure_file(plot)
    prompt_len = tokens(prompt, "--prompt")
    times = [parse_seconds(text, name="--held", maximum=1e10) for text in held or ("5min", "1h", "24h")]
    count = parse_count(reuses, name="--reuses", minimum=1.0, maximum=1e9)
    limit = None if within is None else parse_seconds(within, name="--within", maximum=MOST_SECONDS)
    over_cost = _price_over_cost(margin, utilisation)
    found, cluster = read_model_and_cluster(model, on, price=price, sets=sets)
    rent = _rent(cluster)
    with progress("looking for the cheapest deployment"):
        deployment = _deployment(found, cluster, layout, precision, calibration, prompt_len, 1000.0)

    from rackline.pricing import TokenCosts, envelope, keeping_lines
    from rackline.report.pricing_report import tiers_report

    costs = TokenCosts.of(deployment)
    lines = keeping_lines(costs, rent, prompt_len, fetch_s=limit)
    reigns = envelope(lines, count)
    title = f"{found.name} on {cluster.name}, {deployment.layout.label()}, {deployment.precision.short()}"
    if file is not None:
        from rackline.report.pricing_figures import tiers_figure
        from rackline.report.svg import write_figure

        write_figure(tiers_figure(lines, reigns, title=title, prompt_len=prompt_len, reuses=count), file)
    entry = float(costs.kv_bytes(prompt_len))
    if json:
        from rackline.pricing.cache import tiers_data

        data = tiers_data(lines, reigns, times, prompt_len=prompt_len, reuses=count, price_over_cost=over_cost)
        print_json({"deployment": deployment.as_dict(), "prompt_len": prompt_len, "entry_bytes": entry, **data})
        return
    out = screen()
    out.print(
        tiers_report(
            lines,
            reigns,
            times,
            title=title,
            entry_bytes=entry,
            prompt_len=prompt_len,
            reuses=count,
            price_over_cost=over_cost,
            width=out.width,
        )
    )


def price(
    model: str,
    /,
    *,
    on: On,
    layout: str | None = None,
    precision: str = "native",
    calibration: str = "auto",
    margin: Value = "30%",
    utilisation: Value = "60%",
    contexts: Annotated[str, Parameter(name="--contexts")] = "32k,128k",
    output: Value = "1k",
    tpot: MaybeValue = "50ms",
    fast: Annotated[str, Parameter(name="--fast")] = "1.5,2.5",
    lifetimes: str = "5min,1h,24h",
    memory: Annotated[Value, Parameter(name="--memory-fraction")] = "0.9",
    rent: MaybeValue = None,
    purchase: MaybeValue = None,
    years: Value = "4",
    kwh: Value = "0.08",
    pue: Value = "1",
    sets: Overrides = None,
    json: Json = False,
    plot: str | None = None,
) -> None:
    """What to charge for a deployment: input, output, cached input, cache writes, batch, flex and fast modes.

    Each context tier is priced at its longest prompt, so that no context is sold below its cost.

    Args:
        model: catalogue name, Hugging Face id, TOML file or config.json
        on: cluster: catalogue name or TOML file
        layout: parts that are fixed, such as tp=8; else the cheapest for prompts of 4k
        precision: native, bf16, fp8, fp4, mxfp4, int8, int4, or in parts such as fp8,kv=bf16
        calibration: auto, trtllm, vllm, sglang, generic, unit (ideal roofline) or a TOML file
        margin: price over cost, less 1, such as 30%
        utilisation: share of the chip-hours that standard traffic fills
        contexts: longest prompts of the context tiers, such as 32k,200k,1M
        output: tokens that an answer adds to the context
        tpot: longest time per output token of the standard mode
        fast: speeds of the faster modes over the standard one, such as 1.5,2.5; below 2 they are called priority
        lifetimes: of cache writes, such as 5min,1h
        memory: share of HBM that the server may use
        rent: price of a chip, in USD an hour; the cluster's own by default
        purchase: price of a chip with its share of host, network and building, in USD, instead of a rent
        years: of use of what was bought
        kwh: price of energy, in USD per kWh; an assumption
        pue: power of the site over that of the machines
        sets: KEY=VALUE replaces a number of the model, cluster or chip; may be repeated
        json: print JSON (SI units) and nothing else
        plot: write price and cost over context to FILE.html, .svg or .png
    """
    file = read_figure_file(plot)
    steps = [tokens(part.strip(), "--contexts") for part in _parts(contexts, "--contexts")]
    output_len = tokens(output, "--output")
    ratios = tuple(
        parse_count(part, name="--fast", minimum=1.0, maximum=1e3) for part in fast.split(",") if part.strip()
    )
    lasting = tuple(parse_seconds(part, name="--lifetimes", maximum=1e10) for part in _parts(lifetimes, "--lifetimes"))
    share = parse_fraction(utilisation, name="--utilisation", zero_allowed=False)
    profit = parse_fraction(margin, name="--margin", maximum=_MOST_MARGIN)
    limit = None if tpot is None else parse_seconds(tpot, name="--tpot", maximum=MOST_SECONDS)
    fraction = memory_fraction(memory)
    found, cluster = read_model_and_cluster(model, on, price=rent, sets=sets)
    cost = _rent(cluster, purchase=purchase, years=years, kwh=kwh, pue=pue)
    with progress("looking for the cheapest deployment"):
        deployment = _deployment(found, cluster, layout, precision, calibration, 4000.0, output_len)

    from rackline.pricing import Terms, TokenCosts, offer_prices

    terms = Terms(
        margin=profit,
        utilisation=share,
        output_len=output_len,
        tpot_s=limit,
        fast_ratios=ratios,
        lifetimes_s=lasting,
    )
    offered = offer_prices(TokenCosts.of(deployment, memory_fraction=fraction), cost, terms, steps=steps)
    if file is not None:
        from rackline.report.pricing_figures import offered_figure
        from rackline.report.svg import write_figure

        write_figure(offered_figure(offered), file)
    if json:
        print_json(offered.as_dict())
        return
    from rackline.report.pricing_report import offered_report

    out = screen()
    out.print(offered_report(offered, width=out.width))


# ---------------------------------------------------------------------------------------------- reading


def _parts(text: str, name: str) -> list[str]:
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise InputError(what=name, given=text, allowed="values with commas between them")
    return found


def _price_over_cost(margin: str, utilisation: str) -> float:
    from rackline.pricing import Terms

    share = parse_fraction(utilisation, name="--utilisation", zero_allowed=False)
    return Terms(
        margin=parse_fraction(margin, name="--margin", maximum=_MOST_MARGIN), utilisation=share
    ).price_over_cost


def _rent(cluster: Cluster, *, purchase: str | None = None, years: str = "4", kwh: str = "0", pue: str = "1") -> Rent:
    """What a chip-hour costs: the cluster's price, or what was bought."""
    from rackline.pricing import Rent, purchase_usd_per_hour

    site = parse_count(pue, name="--pue", minimum=1.0, maximum=10.0)
    energy = parse_usd_per_hour(kwh, name="--kwh", maximum=MOST_USD, zero_allowed=True)
    power = cluster.power_w_per_chip
    if purchase is None:
        if cluster.usd_per_chip_hour is None:
            raise InputError(
                what=f"price of {cluster.name}",
                given=None,
                allowed="USD a chip-hour, see --help",
                nearest="2.50",
            )
        return Rent(usd_per_chip_hour=cluster.usd_per_chip_hour, power_w_per_chip=power, pue=site, usd_per_kwh=energy)
    if power is None:
        raise InputError(
            what=f"power of {cluster.name}", given=None, allowed="--set power_w_per_chip=WATTS, which --purchase needs"
        )
    paid = purchase_usd_per_hour(
        parse_usd_per_hour(purchase, name="--purchase", maximum=1e9),
        parse_count(years, name="--years", maximum=100.0),
        power,
        site,
        energy,
    )
    return Rent(usd_per_chip_hour=paid, power_w_per_chip=power, pue=site, usd_per_kwh=energy, how="purchase")


def _deployment(
    model: AnyModel,
    cluster: Cluster,
    layout: str | None,
    precision: str,
    calibration: str,
    prompt_len: float,
    output_len: float,
) -> Deployment:
    """The cheapest deployment of this precision for prompts of this length, among the layouts that were left free.

    Raises:
        InputError: none fits.
    """
    from rackline.parallel import Deployment
    from rackline.search import plan
    from rackline.serving.stack import stack_of
    from rackline.serving.workload import Workload

    numbers = find_calibration(calibration, cluster.chip)
    answer = plan(
        model,
        cluster,
        Workload(input_len=prompt_len, output_len=max(output_len, 2.0)),
        calibration=numbers,
        precisions=read_precisions([precision], model, cluster),
        layouts=read_layouts(layout, model, cluster),
        pools=False,
    )
    if answer.best is None:
        raise InputError(
            what="deployment", given=f"{model.name} on {cluster.name}", allowed=f"one that fits: {answer.reason}"
        )
    return Deployment(
        model=model,
        cluster=cluster,
        layout=answer.best.layout,
        precision=answer.best.precision,
        calibration=numbers,
        routing=stack_of(numbers, cluster.chip.hbm_bytes).routing,
    )
