"""Terminal report of speculative decoding: when it pays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.table import Table

from rackline.report.breakdown import plain_table
from rackline.report.wording import written
from rackline.search.speculation import SpeculationRow
from rackline.units import format_seconds


def speculation_report(rows: Sequence[SpeculationRow], tpot_limit_s: float | None) -> Table:
    """A row a number of drafts."""
    limit = "memory" if tpot_limit_s is None else f"tpot {format_seconds(tpot_limit_s)}"
    table = plain_table(
        "speculative decoding on the chosen decode replica, passes that only decode",
        caption=f"batches are sequences of a rank; the last two columns at the largest batch within {limit}",
    )
    for name in ("drafts", "tokens/step", "pays below", "speed at 1", "at half", "batch", "tok/s/chip"):
        table.add_column(name, justify="right", no_wrap=True)
    plain = rows[0]
    largest = float(plain.sequences_per_rank[-1])
    for row in rows:
        half = int(np.argmin(np.abs(plain.sequences_per_rank - max(plain.best_batch, 1) / 2)))
        pays = "always" if row.pays_up_to >= largest else f"{row.pays_up_to:,}" if row.pays_up_to else "never"
        drafts = row.speculation.draft_tokens
        table.add_row(
            str(drafts),
            written(row.speculation.tokens_per_step),
            pays if drafts else "-",
            f"×{plain.tpot_s[0] / row.tpot_s[0]:.2f}",
            f"×{plain.tpot_s[half] / row.tpot_s[half]:.2f}",
            f"{row.best_batch:,}" if row.best_batch else "none",
            f"{row.output_tokens_per_s_per_chip:,.0f}",
        )
    return table
