"""Round numbers where a decision is made, so that all processors decide alike.

BLAS, NumPy and the C library sum in another order, or with fused products, on another processor. The last bit of a
number then differs. That is harmless until the bit decides: two layouts cost the same, or a search tries a rate that
differs in its last bit, and thousands of simulated requests later a batch has one request more.

So searches try numbers of a grid, and costs are rounded before they are compared. Numbers that decide nothing are not
rounded.
"""

from __future__ import annotations

from math import ceil, floor, isfinite, log10

import numpy as np
import numpy.typing as npt

_NOISE = 1e-9  # relative: more than rounding errors come to, less than a step of the grid
_DIGITS = 5  # of a rate: steps of 0.001 to 0.01 %, a fiftieth of what searches resolve
_BITS = 33  # of what is compared: 1e-10 of itself


def grid_below(value: float) -> float:
    """Return the highest number of five significant digits that is not above a value; 0 and infinity stay.

    A value within rounding of such a number is taken as this number.

    >>> grid_below(3.1396506256603365), grid_below(3.1395999999999997), grid_below(1234567.0)
    (3.1396, 3.1396, 1234500.0)
    """
    steps_per_unit = _steps_per_unit(value)
    return floor(value * steps_per_unit * (1.0 + _NOISE)) / steps_per_unit if steps_per_unit else value


def grid_above(value: float) -> float:
    """Return the lowest number of five significant digits that is not below a value; 0 and infinity stay.

    >>> grid_above(3.1396506256603365), grid_above(3.1396000000000002), grid_above(0.0)
    (3.1397, 3.1396, 0.0)
    """
    steps_per_unit = _steps_per_unit(value)
    return ceil(value * steps_per_unit * (1.0 - _NOISE)) / steps_per_unit if steps_per_unit else value


def _steps_per_unit(value: float) -> float:
    """Return how many steps of the grid a unit has near a value; 0 where the value needs no grid."""
    if not isfinite(value) or value <= 0.0:
        return 0.0
    return 10.0 ** (_DIGITS - 1 - floor(log10(value)))


def rounded(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Round to 33 binary digits, in which numbers that differ by rounding errors are equal.

    >>> rounded([0.1 + 0.2, 0.3, np.inf]).tolist() == [*rounded([0.3, 0.3]).tolist(), np.inf]
    True
    """
    mantissa, exponent = np.frexp(np.asarray(values, dtype=np.float64))
    return np.ldexp(np.rint(np.ldexp(mantissa, _BITS)), exponent - _BITS)
