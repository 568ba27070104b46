"""The disaggregated answer of `plan` for people: both pools side by side, and what it saves over one engine."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rackline.report.breakdown import plain_table, resources_line
from rackline.report.wording import money, money_name, percent, share
from rackline.search import Plan, Pool, PoolPair
from rackline.units import format_bytes, format_count, format_seconds

LEVELS = {"scale_up": "the scale-up domain", "scale_out": "the network"}


def pool_panel(plan: Plan, pair: PoolPair, title: str, subtitle: str) -> Panel:
    """The headline of a disaggregated answer."""
    body = Text()
    for name, pool in (("decode", pair.decode), ("prefill", pair.prefill)):
        body.append(f"{name}  " if name == "decode" else f"\n{name} ", style="dim")
        body.append(replace(pool.layout, dp=1).label(), style="bold green")
        body.append(f" · {pool.precision.short()} · {_scheduler(pool)}")
        body.append(f"\n        {_replicas(pool)}")
    return Panel(body, title=title, title_align="left", subtitle=subtitle, subtitle_align="left")


def _scheduler(pool: Pool) -> str:
    overlap = ", two-batch overlap" if pool.mode.two_batch_overlap else ""
    if pool.batch_size:
        return f"batch {pool.batch_size:,} a replica{overlap}"
    return f"{pool.mode.max_batched_tokens} tokens a pass{overlap}"


def _replicas(pool: Pool) -> str:
    count = pool.layout.dp
    chips = pool.layout.chips_per_replica
    return f"{count} replica{'s' if count > 1 else ''} of {chips} chip{'s' if chips > 1 else ''} on {pool.cluster}"


def pool_report(plan: Plan, pair: PoolPair, width: int) -> list[RenderableType]:
    """Numbers of the pair, both pools, the comparison with one engine."""
    return [_key_numbers(plan, pair, width), _pools(plan, pair), *_against_one_engine(plan, pair)]


def _key_numbers(plan: Plan, pair: PoolPair, width: int) -> Table:
    limits, unit = plan.constraints, money_name(plan.priced)
    cells = [
        ("time per output token", _against(pair.tpot_s, limits.tpot_s)),
        (f"{unit} per M input tokens", money(pair.usd_per_mtok_input, plan.priced)),
        ("time to first token", _against(pair.ttft_s, limits.ttft_s)),
        (f"{unit} per M output tokens", money(pair.usd_per_mtok_output, plan.priced)),
        ("tokens/s per user", format_count(pair.tokens_per_s_per_user)),
        (f"{unit} per M output, all-in", money(pair.usd_per_mtok_output_all_in, plan.priced)),
        ("output tokens/s per chip", f"{pair.output_tokens_per_s_per_chip:,.0f}"),
        ("chips, decode and prefill", _chips(plan, pair)),
        ("requests/s", f"{pair.requests_per_s:.3g}"),
        ("requests decoding", f"{pair.decode.batch_size * pair.decode.layout.dp:,}"),
    ]
    table = Table.grid(padding=(0, 2))
    pairs = 2 if width >= (100 if plan.priced else 120) else 1
    for _ in range(pairs):
        table.add_column(style="dim", no_wrap=True)
        table.add_column(style="bold", no_wrap=True)
    order = cells if pairs == 2 else cells[::2] + cells[1::2]
    for start in range(0, len(order), pairs):
        table.add_row(*(cell for pair_ in order[start : start + pairs] for cell in pair_))
    return table


def _chips(plan: Plan, pair: PoolPair) -> str:
    used = f"{pair.decode.num_chips} + {pair.prefill.num_chips}"
    return f"{used} of {plan.cluster.num_chips}" if pair.decode.cluster == pair.prefill.cluster else used


def _against(value: float, limit: float | None) -> str:
    return format_seconds(value) + (f"  ({percent(share(value, limit))} of the limit)" if limit is not None else "")


def _pools(plan: Plan, pair: PoolPair) -> Group:
    table = plain_table("the two pools")
    table.add_column("", no_wrap=True)
    for name in ("decode", "prefill"):
        table.add_column(name, justify="right", no_wrap=True)
    decode, prefill = pair.decode, pair.prefill
    rows = [
        ("chips", f"{decode.num_chips}", f"{prefill.num_chips}"),
        ("step, prompt", format_seconds(decode.seconds), format_seconds(prefill.seconds)),
        ("requests/s it could serve", f"{decode.requests_per_s:.3g}", f"{prefill.requests_per_s:.3g}"),
        ("load", percent(decode.load), percent(prefill.load)),
    ]
    lines: list[RenderableType] = []
    inside = plan.pools.inside if plan.pools else None
    if inside and inside.prefill_memory:
        then, first = inside.memory, inside.prefill_memory
        rows += [
            ("free memory", format_bytes(float(then.free)), format_bytes(float(first.free))),
            ("KV cache", format_bytes(float(then.kv_cache)), format_bytes(float(first.kv_cache))),
        ]
        lines = [
            Text.assemble("decode pass, ", resources_line(inside.decode)),
            Text.assemble("prefill pass, ", resources_line(inside.prefill)),
        ]
    for row in rows:
        table.add_row(*row)
    sent = pair.transfer
    lines.append(
        Text(
            f"KV cache of a prompt: {format_bytes(sent.kv_bytes)} over {LEVELS[sent.level]} "
            f"in {format_seconds(sent.seconds)}, counted in the time to first token",
            style="dim",
        )
    )
    return Group(table, *lines)


def _against_one_engine(plan: Plan, pair: PoolPair) -> list[RenderableType]:
    alone = plan.aggregated
    if alone is None:
        return [Text(f"one engine for both: {plan.reason}", style="dim")]
    ratio = alone.usd_per_mtok_output_all_in / pair.usd_per_mtok_output_all_in
    return [
        Text(
            f"one engine for both costs {money(alone.usd_per_mtok_output_all_in, plan.priced)} per M output tokens, "
            f"{ratio:.3g} times as much; its numbers follow",
            style="dim",
        )
    ]


def pools_beside(plan: Plan) -> list[RenderableType]:
    """One line about the pools where one engine is cheaper."""
    found = plan.disaggregated
    if found is None:
        return []
    if found.best is None:
        return [Text(f"separate pools for prefill and decode: {found.reason}", style="dim")]
    pair = found.best
    then, first = pair.decode_pool, pair.prefill_pool
    if then is None or first is None:
        return []
    cost = money(pair.usd_per_mtok_output_all_in, plan.priced)
    return [
        Text(
            f"separate pools for prefill and decode cost {cost} per M output tokens "
            f"({then.num_chips} chips decode, {first.num_chips} prefill)",
            style="dim",
        )
    ]
