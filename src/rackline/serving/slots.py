"""Waiting for a slot: an engine runs no more sequences than max_num_seqs, or than its KV cache holds.

A slot is a server that a request occupies from its first pass to its last. The slots form an M/D/c queue: c slots,
Poisson arrivals, requests of about equal length.
"""

from __future__ import annotations

import numpy as np

from rackline.passes.features import Array, FloatLike, as_array


def slot_wait_s(in_flight: FloatLike, slots: FloatLike, stay_s: FloatLike) -> Array:
    """Mean waiting time for a slot [s]; infinite where more requests are in flight than there are slots.

        M/M/c: stay / c · rho^(sqrt(2 (c + 1)) - 1) / (1 - rho),    M/D/c: half of it, times 1 + f

        f = (1 - rho) (c - 1) (sqrt(4 + 5 c) - 2) / (16 rho c)

    Args:
        in_flight: mean number of occupied slots, arrival rate · stay [sequences].
        slots: c [sequences].
        stay_s: time that a request occupies its slot [s].

    Sources: Sakasegawa 1977 for M/M/c; Cosmetatos 1975 for M/D/c.

    >>> round(float(slot_wait_s(0.8, 1.0, 1.0)), 3), float(slot_wait_s(2.0, 1.0, 1.0))
    (2.0, inf)
    """
    c = np.maximum(as_array(slots), 1.0)
    rho = as_array(in_flight) / c
    below = np.clip(rho, 1e-9, 1.0 - 1e-9)
    wait = as_array(stay_s) / c * below ** (np.sqrt(2.0 * (c + 1.0)) - 1.0) / (1.0 - below)
    equal = 1.0 + (1.0 - below) * (c - 1.0) * (np.sqrt(4.0 + 5.0 * c) - 2.0) / (16.0 * below * c)
    return np.where(rho < 1.0, 0.5 * wait * equal, np.inf)
