"""Interleaved 1F1B: every device holds several chunks of the model, so that the pipeline fills faster.

Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2; order as in Megatron-LM's schedules.
"""

from __future__ import annotations

from rackline.errors import require
from rackline.training.schedules.schedule import Schedule, Slot, Table, in_turn


def table(pp: int, micro_batches: int, chunks: int) -> Table:
    """Groups of pp micro-batches pass chunk after chunk.

    Raises:
        InputError: pp does not divide the micro-batches.
    """
    require(
        chunks <= 1 or not micro_batches % pp,
        what="interleaved schedule",
        given=f"{micro_batches} micro-batches",
        allowed=f"a multiple of the {pp} stages",
        nearest=str(max(pp, round(micro_batches / pp) * pp)),
    )
    total = micro_batches * chunks

    def slot(number: int, forward: bool) -> Slot:
        chunk = number % (pp * chunks) // pp
        micro_batch = number // (pp * chunks) * pp + number % pp
        return Slot("F" if forward else "B", micro_batch, chunk if forward else chunks - 1 - chunk)

    found: list[tuple[Slot, ...]] = []
    for device in range(pp):
        ahead = min((pp - device - 1) * 2 + (chunks - 1) * pp, total) if chunks > 1 else min(pp - 1 - device, total)
        slots = [slot(n, True) for n in range(ahead)]
        for number in range(total):
            if number + ahead < total:
                slots.append(slot(number + ahead, True))
            slots.append(slot(number, False))
        found.append(tuple(slots))
    return tuple(found)


INTERLEAVED = Schedule(
    name="interleaved",
    table=table,
    chunks=0,
    place=in_turn,
    bubble=lambda p, m, v, forward, backward, weight: (p - 1) / v * (forward + backward),
    in_flight=lambda p, m, v: min(p, m) * (1.0 + (p - 1) / (p * v) * (v > 1)),
    source="Narayanan et al. 2021, arXiv:2104.04473; Korthikanti et al. 2022, section 4.2.3",
)
