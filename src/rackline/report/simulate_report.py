"""The terminal report of a simulation and of the request rate at which limits hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from rackline.display.column import Column, Sheet, spaced
from rackline.display.wording import Box, Prose, composed, percent, short_count, written
from rackline.report.memory_report import memory_share, memory_sheet, misfit_report
from rackline.search.misfit import ChipMemory, Misfit
from rackline.serving.capacity import Capacity, CapacityRow
from rackline.units import format_count, format_seconds, format_usd, plural, several, statistic_name

if TYPE_CHECKING:
    from rackline.search.rate_capacity import RateCapacity


_LATENCIES = {
    "ttft_s": "time to first token",
    "tpot_s": "time per output token",
    "inter_token_s": "between two tokens",
    "e2e_s": "whole request",
    "queue_s": "in the queue",
}


def _seconds(value: float) -> str:
    return "-" if not math.isfinite(value) else format_seconds(value)


def run_report(data: Mapping[str, Any], title: str, *, elapsed_s: float) -> Group:
    """Everything that `rackline simulate` prints for one run.

    Args:
        data: `Result.summary`.
        title: description of the deployment.
        elapsed_s: wall time of the simulation [s].
    """
    refused, skipped = data["refused"], data["skipped"]
    body = composed(
        (f"{data['finished']:,} of {data['requests']:,} requests", "bold green"),
        f" in {format_seconds(data['makespan_s'])} of simulated time",
        ("\ninterrupted: what follows is what was simulated so far", "bold yellow") if data["interrupted"] else None,
        (f"\n{refused:,} requests ({percent(refused / data['requests'])}) were refused", "yellow") if refused else None,
        (f"\n{skipped:,} requests were left out", "yellow") if skipped else None,
        f"\n{format_count(data['output_tokens_per_s'])} output tokens/s, "
        f"{format_count(data['input_tokens_per_s'])} prompt tokens/s, {written(data['requests_per_s'])} requests/s",
        _prices(data),
        _limits(data),
        _warnings(data),
    )
    rows = [{"latency": label, **data[key], "p99_interval": _ends(data[key])} for key, label in _LATENCIES.items()]
    table = Sheet(
        "latency",
        [*_spread_columns(), Column("p99_interval", "95 % interval", "figures", priority=1)],
        rows,
        title="latency",
    )
    return Group(
        Box(body, title),
        Text(""),
        table,
        Prose(_measured(data["measured"]), style="dim"),
        *_by_priority(data),
        *(part for sheet in class_sheets(data["by_class"], "by class") for part in (Text(""), sheet)),
        Text(""),
        *frontend_lines(data),
        _occupancy(data),
        *_adapters(data),
        Text(f"simulated in {format_seconds(elapsed_s)} ({data['steps']:,} steps)", style="dim"),
    )


def _prices(data: Mapping[str, Any]) -> str:
    """What tokens cost; empty where no chip has a price."""
    if "usd_per_mtok_input" not in data:
        return ""
    given, made, all_in = (format_usd(data[f"usd_per_mtok_{name}"]) for name in ("input", "output", "output_all_in"))
    return f"\n{given} per M input tokens, {made} per M output tokens ({all_in} all-in)"


def _limits(data: Mapping[str, Any]) -> Text | None:
    """Whether the limits are kept, and by how many requests; None without limits."""
    if "slo" not in data:
        return None
    return composed(
        ("\nkeeps the limits", "bold green") if data["meets_slo"] else ("\nbreaks the limits", "bold red"),
        f" on {_statistics(data['slo'])}; {percent(data['slo_attainment'])} of requests are within them, "
        f"{written(data['goodput_requests_per_s'])} requests/s",
    )


def _statistics(slo: Mapping[str, Any]) -> str:
    """Return the statistics that the limits of an answer are of; see `Slo.statistics`."""
    from rackline.simulation.classes import Slo

    return Slo(**slo).statistics


def _spread_columns() -> list[Column[Any]]:
    """What a latency is called, its mean and its percentiles; "-" where none were measured."""

    def of(name: str) -> Column[Any]:
        return Column(name, name, "s", lambda row: row[name] if math.isfinite(row[name]) else None)

    return [Column("latency"), *(of(name) for name in ("mean", "p50", "p90", "p99"))]


def _ends(spread: Mapping[str, Any]) -> str:
    """The interval of a p99; nothing where none is known of the latency."""
    if "p99_interval" not in spread or not math.isfinite(spread["p99"]):
        return ""
    low, high = (spread["p99_interval"][name] for name in ("low", "high"))
    return f"{_seconds(low)} to {_seconds(high) if math.isfinite(high) else '?'}"


def _measured(measured: Mapping[str, Any]) -> str:
    """Which requests the latencies are of."""
    text = f"latencies of {measured['requests']:,} requests"
    if measured["warm_up_requests"] or measured["last_requests"]:
        text += f", without a warm-up of {measured['warm_up_requests']:,} and the last {measured['last_requests']:,}"
    if measured["steady"] is False:
        text += "; the run is too short for a steady state, or has none"
    return text


def _adapters(data: Mapping[str, Any]) -> list[RenderableType]:
    """How often a request found its adapter in memory; nothing where there is one at most."""
    if "adapter_loads" not in data:
        return []
    loads = data["adapter_loads"]
    found = f"{percent(data['adapter_hit_share'])} of requests found their adapter in memory"
    return [Text(f"{found}; {several(loads, 'transfer')} from the host")]


def _by_priority(data: Mapping[str, Any]) -> list[RenderableType]:
    """Latencies of each priority tier; nothing where all requests are equal."""
    tiers = data["by_priority"]
    if not tiers:
        return []

    rows = [
        {
            **tier[key],
            "latency": _LATENCIES[key],
            "priority": "" if place else tier["priority"],
            "requests": "" if place else tier["requests"],
        }
        for tier in tiers
        for place, key in enumerate(("ttft_s", "tpot_s", "e2e_s", "queue_s"))
    ]
    table = Sheet(
        "by_priority",
        [
            Column("priority", "tier", "whole"),
            Column("requests", "requests", "whole"),
            *_spread_columns(),
        ],
        rows,
        title="by priority, the lowest number first",
    )
    parts: list[RenderableType] = [Text(""), table]
    if "slo_attainment" in tiers[0]:
        kept = ", ".join(f"{percent(tier['slo_attainment'])} of tier {tier['priority']}" for tier in tiers)
        parts.append(Text(f"within the limits: {kept}"))
    return parts


def class_sheets(rows: Sequence[Mapping[str, Any]], title: str) -> list[Sheet[Any]]:
    """What became of each class; nothing where there are none."""
    if not rows:
        return []

    def of(latency: str, percentile: str, name: str, priority: int) -> Column[Any]:
        def read(row: Mapping[str, Any]) -> float | None:
            value = row[latency][percentile]
            return value if math.isfinite(value) else None

        return Column(f"{latency}.{percentile}", f"{name} {percentile}", "s", read, priority=priority)

    columns: list[Column[Any]] = [
        Column("name", "class"),
        Column("priority", "tier", "whole", priority=2),
        Column("requests", "requests", "whole", priority=1),
        Column("refused_share", "refused", "share", priority=0 if any(row["refused"] for row in rows) else 3),
        of("ttft_s", "p50", "TTFT", 3),
        of("ttft_s", "p99", "TTFT", 1),
        of("tpot_s", "p50", "TPOT", 3),
        of("tpot_s", "p99", "TPOT", 1),
        Column("output_tokens_per_s", "output tokens/s", "count", priority=2),
        Column("attained", "within limits", "share", lambda row: row.get("attained")),
        Column("holds", "breaks", "figures", lambda row: ", ".join(_broken(row)) or "-"),
    ]
    note = "latencies of answers; a refused or unanswered request keeps no limit"
    return [Sheet("by_class", columns, rows, title, note if any(row["limits"] for row in rows) else "")]


def _broken(row: Mapping[str, Any]) -> list[str]:
    """The limits of a class that are not kept at their percentile."""
    return [
        f"{limit['latency'].removesuffix('_s')}@{statistic_name(limit['percentile'])}"
        for limit in row["limits"]
        if not limit["holds"]
    ]


def frontend_lines(data: Mapping[str, Any]) -> list[RenderableType]:
    """How much of the frontend is used, and whether it is what keeps requests back."""
    lines: list[RenderableType] = []
    for stage in data["frontend"]:
        used, wait = stage["utilization"], stage["wait_s"]
        lines.append(
            Prose(
                f"frontend {stage['name']} × {stage['servers']:,}: passes up to {written(stage['requests_per_s'])} "
                f"requests/s of this mean length, {percent(used)} of that came; {_seconds(stage['service_s'])} each, "
                f"waits p50 {_seconds(wait['p50'])}, p99 {_seconds(wait['p99'])}"
            )
        )
    if data["frontend_binds"]:
        lines.append(Text("the frontend binds: more of its servers help, more chips do not", style="bold yellow"))
    return lines


def _warnings(data: Mapping[str, Any]) -> Text:
    """What makes the latencies below say more of the run's length, or of ranks that wait, than of the chips."""
    over, steps = data["overload"], data["lockstep"]
    return composed(
        None
        if over is None
        else f"\n{written(over['arrived_per_s'])} requests/s came and {written(over['started_per_s'])} could start; "
        f"{over['waiting']:,} waited when the last one came. The longer such a run, the longer the waits.",
        f"\n{percent(steps['prompt_time_share'])} of the time are passes with prompts, and those have prompts on "
        f"{percent(steps['prompt_rank_share'])} of the ranks; the others wait, because ranks step together. "
        "--compare shows whether other chunks (max-batched-tokens) or servers for prompts (prefill-replicas) help."
        if steps is not None and steps["prompt_time_share"] > 0.3 and steps["prompt_rank_share"] < 0.5
        else None,
        style="yellow",
    )


def _occupancy(data: Mapping[str, Any]) -> Prose:
    cached = ""
    if data["cache_hit_share"]:
        tiers = ", ".join(percent(share) for share in data["cache_hit_share_by_tier"])
        cached = f"\n{percent(data['cache_hit_share'])} of prompt tokens came from the cache (by tier: {tiers})"
        if data["cache_hit_share_unlimited"] is not None:
            cached += f"; earlier prompts and answers hold {percent(data['cache_hit_share_unlimited'])}"
    return Prose(
        composed(
            f"busy {percent(data['busy_share'])} of the time; {written(data['decoding_sequences'])} sequences decode "
            f"and {percent(data['kv_share'])} of the KV blocks are in use, on average",
            (f"\n{data['preemptions']:,} preemptions", "yellow") if data["preemptions"] else None,
            cached,
        )
    )


def comparison_report(runs: Mapping[str, Mapping[str, Any]]) -> Sheet[Any]:
    """Several runs side by side, one column each."""
    rows: list[dict[str, Any]] = []

    def add(name: str, unit: str, values: Sequence[float | None]) -> None:
        cells = Column("", "", unit).cells(values)
        rows.append({"quantity": name, **{run: cell.plain for run, cell in zip(runs, cells, strict=True)}})

    for key, name in (
        ("ttft_s", "time to first token"),
        ("tpot_s", "time per output token"),
        ("e2e_s", "whole request"),
    ):
        for q in ("p50", "p99"):
            add(f"{name}, {q}", "s", [data[key][q] for data in runs.values()])
    for tier in sorted({one["priority"] for data in runs.values() for one in data["by_priority"]}):
        for key, name in (("ttft_s", "to first token"), ("tpot_s", "per output token")):
            found = [{one["priority"]: one for one in data["by_priority"]}.get(tier) for data in runs.values()]
            add(f"{name}, p99, tier {tier}", "s", [None if one is None else one[key]["p99"] for one in found])
    add("output tokens/s", "1", [data["output_tokens_per_s"] for data in runs.values()])
    if any("slo_attainment" in data for data in runs.values()):
        add("within the limits", "share", [data["slo_attainment"] for data in runs.values()])
    for key, name in (("input", "$ per M input tokens"), ("output", "$ per M output tokens"),
                      ("output_all_in", "$ per M output, all-in")):  # fmt: skip
        prices = [data.get(f"usd_per_mtok_{key}") for data in runs.values()]
        if any(price is not None for price in prices):
            add(name, "USD", prices)
    add("preemptions", "whole", [data["preemptions"] for data in runs.values()])
    columns: list[Column[Any]] = [Column("quantity")]
    columns += [Column(run, run.replace(",", ", "), "figures") for run in runs]
    return Sheet("compared", columns, rows, title="compared on the same requests")


def rate_capacity_report(found: RateCapacity) -> Group:
    """The highest rate that meets the limits."""
    body = composed(("No rate meets the limits. ", "bold red"), found.reason)
    if found.rate_per_s > 0:
        low, high = ("?" if math.isnan(end) else written(end) for end in (found.rate_low, found.rate_high))
        broken = "" if found.broken_per_s is None else f"; {written(found.broken_per_s)} requests/s do not"
        body = composed(
            (f"{written(found.rate_per_s)} requests/s", "bold green"),
            f" meet the limits on {found.slo.statistics} (95 % interval {low} to {high})",
            (f"{broken} ({found.reason})", "dim") if broken else None,
        )
    latencies = (("ttft_s", "ttft"), ("tpot_s", "tpot"), ("e2e_s", "whole request"))

    def tried(key: str, title: str) -> Column[Any]:
        return Column(f"values.{key}", title, "s", lambda one: one.values.get(key))

    table = Sheet(
        "tried",
        [
            Column("rate_per_s", "requests/s", "1"),
            Column("holds", "holds", getter=lambda one: "yes" if one.holds else "no"),
            *(tried(key, title) for key, title in latencies),
        ],
        found.tried,
        title="rates that were tried",
    )
    return Group(Box(body, "capacity"), Text(""), table)


_MOST_ROWS = 20


def capacity_report(
    capacity: Capacity, *, num_chips: int, memory: ChipMemory | None = None, misfit: Misfit | None = None
) -> Group:
    """Everything that `rackline fit` prints.

    Args:
        num_chips: chips of the cluster [chips].
        memory: of the fullest chip of the layout that holds most, or lacks least; None without a layout.
        misfit: what would make it fit, where nothing does.
    """
    asked = f"context {short_count(capacity.context_len)}"
    if capacity.concurrency is not None:
        asked += f", {capacity.concurrency:,} requests at once"
    fitting = capacity.fitting
    if fitting:
        body = composed(
            (f"{fitting[0].total_concurrency:,} requests", "bold green"),
            f" of {short_count(capacity.context_len)} tokens at once on {num_chips} chips with ",
            (fitting[0].layout.label(), "bold"),
            f"\n{len(fitting)} of {len(capacity.rows)} layouts hold what was asked",
        )
    else:
        body = composed(("Nothing fits. ", "bold red"), nearest_reason(capacity))
    title = f"{capacity.model} on {capacity.cluster} ({num_chips} {plural(num_chips, 'chip')})"
    room = memory_share(capacity.memory_fraction, capacity.fraction_of)
    held = None if memory is None else memory_sheet(memory)
    return spaced(
        [
            Box(body, f"{title}, {capacity.precision.short()}", f"{asked}, {room}", "none" if fitting else "red"),
            _layouts(fitting or capacity.rows, holds=bool(fitting)),
            held if misfit is None else misfit_report(misfit),
        ]
    )


def nearest_reason(capacity: Capacity) -> str:
    """Why the roomiest layout does not hold what was asked."""
    if not capacity.rows:
        return "no layout is possible"
    best = max(capacity.rows, key=lambda row: (row.total_concurrency, row.kv_room_bytes))
    if best.reason:
        return f"{best.layout.label()}: {best.reason}"
    return f"at most {best.total_concurrency:,} requests at once ({best.layout.label()})"


def _layouts(rows: Sequence[CapacityRow], *, holds: bool) -> Sheet[CapacityRow]:
    shown = rows[:_MOST_ROWS] if holds else sorted(rows, key=lambda row: -row.kv_room_bytes)[:8]
    hidden = len(rows) - len(shown)

    told = "layouts, most requests first; longest is the context of a single request a rank"
    return Sheet(
        "layouts",
        [
            Column("total_concurrency", "requests", "whole", style="bold"),
            Column("max_concurrency", "a replica", "whole"),
            Column("layout.chips_per_replica", "chips", "whole"),
            Column("weights_bytes", "weights", "B", priority=1),
            Column("kv_room_bytes", "KV room", "B"),
            Column("kv_bytes_per_sequence", "KV/request", "B"),
            Column("max_context", "longest", "count", lambda row: _longest(row.max_context), priority=2),
            Column("layout", "layout", "words", lambda row: row.layout.label()),
        ],
        shown,
        told if holds else "layouts with the most room",
        (f"{hidden} more layouts; --json has all" if hidden else ""),
    )


def _longest(context: float) -> float | str:
    return context if math.isfinite(context) else "unlimited"
