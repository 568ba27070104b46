"""A low-rank adapter on the terminal: its modules, parameters and FLOP."""

from __future__ import annotations

from rich.table import Table

from rackline.arch import AppliedAdapter
from rackline.report.breakdown import plain_table
from rackline.report.wording import flop
from rackline.units import format_bytes, format_count


def adapter_report(adapter: AppliedAdapter) -> Table:
    """One row for each kind of module, then all of them."""
    table = plain_table(f"adapter {adapter.name}", caption="bf16; FLOP of one token")
    for name in ("module", "layers", "experts", "inputs", "outputs", "rank", "parameters", "size", "FLOP"):
        table.add_column(name, justify="left" if name == "module" else "right", no_wrap=True)
    for one in adapter.modules:
        table.add_row(
            one.name,
            f"{one.layers:,}",
            f"{one.copies:,}" if one.copies > 1 else "-",
            f"{one.inputs:,}",
            f"{one.outputs:,}",
            f"{one.rank:,}",
            format_count(one.params),
            format_bytes(2.0 * one.params),
            flop(one.flop),
        )
    table.add_section()
    if adapter.whole_params:
        whole = adapter.whole_params
        table.add_row("stored whole", "", "", "", "", "", format_count(whole), format_bytes(2.0 * whole), "")
    total = (format_count(adapter.total_params), format_bytes(adapter.stored_bytes), flop(adapter.flop_per_token))
    table.add_row("all", "", "", "", "", "", *total, style="bold")
    return table
