"""Expected load of the busiest of several peers under random arrivals."""

from __future__ import annotations

from functools import cache

import numpy as np

from rackline.passes.features import Array, FloatLike, as_array

_FEWEST, _MOST, _POINTS = 1e-3, 1e2, 101


def busiest_share(mean: FloatLike, peers: FloatLike) -> Array:
    """Arrivals at the busiest of several peers over the mean of those peers that have any.

    With N_i arrivals at peer i, Poisson and independent: E[max N] / P(max N > 0) over E[N] / P(N > 0). It is 1 for one
    peer, and near 1 where arrivals are rare (a peer has at most one) and where they are many.

    Args:
        mean: arrivals at each peer [count], broadcast with `peers`.
        peers: number of peers [count].

    Returns:
        The factor, at least 1, in the broadcast shape [1].

    Assumes: interpolated between 101 points with means a factor of 1.12 apart, within 0.5 % of the exact sum; above
    100 arrivals, the factor at 100.
    Sources: E[max] = sum over k of 1 - (1 - P(N >= k))^peers, the tail sum of a maximum of independent variables.

    >>> round(float(busiest_share(0.3, 4)), 3)
    1.056
    """
    means, counts = as_array(mean), as_array(peers)
    shape = np.broadcast_shapes(means.shape, counts.shape)
    logs = np.broadcast_to(np.log(np.maximum(means, _FEWEST)), shape)
    found = np.ones(shape)
    by_row = counts.ndim == len(shape) > 0 and counts.shape == (*shape[:-1], 1)  # one number of peers per layout
    for count in np.unique(counts):
        if count > 1:
            here = counts == count
            here = here[..., 0] if by_row else np.broadcast_to(here, shape)
            found[here] = np.interp(logs[here], *_curve(float(count)))
    return found


def most_of(mean: FloatLike, peers: FloatLike, chance: FloatLike = 1.0) -> Array:
    """Arrivals at the busiest of several peers over the mean of one.

    E[max N] / mean, interpolated between random assignment and the most even one, where the total is divided by the
    number of peers and rounded up.

    Args:
        mean: arrivals at each peer [count], broadcast with `peers`.
        peers: number of peers [count].
        chance: 1 if each arrival goes to a random peer, 0 if it goes to the peer with the fewest [1].

    Returns:
        The factor, 1 to `peers`, in the broadcast shape [1].

    Assumes: Poisson arrivals; interpolated between 101 points with means a factor of 1.12 apart.

    >>> most_of(1e-3, 4).round(2), most_of(3.0, 4).round(2), most_of(3.0, 4, 0.0).round(2)
    (np.float64(3.99), np.float64(1.61), np.float64(1.13))
    """
    low = np.clip(as_array(mean), _FEWEST, _MOST)
    counts = as_array(peers)
    kinds, row = np.unique(counts, return_inverse=True)
    by_chance, evenly = (
        np.stack(curves) for curves in zip(*(_most_curves(float(kind)) for kind in kinds), strict=True)
    )
    place = np.log(low / _FEWEST) * ((_POINTS - 1) / np.log(_MOST / _FEWEST))
    left = np.minimum(place.astype(np.int64), _POINTS - 2)
    part = place - left
    at = row.reshape(counts.shape) * _POINTS + left
    found = np.take(evenly, at) * (1.0 - part) + np.take(evenly, at + 1) * part
    return found + as_array(chance) * (
        np.take(by_chance, at) * (1.0 - part) + np.take(by_chance, at + 1) * part - found
    )


@cache
def _most_curves(peers: float) -> tuple[Array, Array]:
    """(E[max N], E[total over peers, rounded up]), each over the mean of one peer, (101,) each."""
    means = np.geomspace(_FEWEST, _MOST, _POINTS)
    by_chance = busiest_share(means, peers) * np.expm1(-means * peers) / np.expm1(-means)
    return by_chance, _even_curve(peers)


@cache
def _even_curve(peers: float) -> Array:
    """E[total over peers, rounded up] over the mean of one, (101,)."""
    means = np.geomspace(_FEWEST, _MOST, _POINTS)
    factors = np.empty(_POINTS)
    for index, mean in enumerate(means):
        total = mean * peers
        counts = np.arange(1, int(total + 12.0 * np.sqrt(total) + 12.0))
        log_terms = counts * np.log(total) - total - np.cumsum(np.log(counts))
        factors[index] = float(np.sum(np.exp(log_terms) * np.ceil(counts / peers))) / mean
    return factors


@cache
def _curve(peers: float) -> tuple[Array, Array]:
    """(log of the mean, factor), (101,) each."""
    means = np.geomspace(_FEWEST, _MOST, _POINTS)
    factors = np.empty(_POINTS)
    for index, mean in enumerate(means):
        far = int(mean + 12.0 * np.sqrt(mean) + 12.0)
        steps = np.arange(far)
        log_terms = steps * np.log(mean) - mean - np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, far)))])
        tails = np.clip(1.0 - np.cumsum(np.exp(log_terms)), 0.0, 1.0)  # P(N >= 1), P(N >= 2), ...
        # tails below 1e-12 are rounding errors, which `peers` would multiply
        some = -np.expm1(peers * np.log1p(-np.minimum(np.where(tails > 1e-12, tails, 0.0), 1.0 - 1e-15)))
        factors[index] = some.sum() / some[0] * -np.expm1(-mean) / mean
    return np.log(means), np.maximum(factors, 1.0)
