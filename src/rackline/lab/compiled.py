"""What XLA says of a compiled function: work and bytes, counted independently of the library."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Cost of one call of a compiled function.

    Args:
        flop: work, element-wise work included [FLOP].
        accessed_bytes: operands and results of all operations, fused ones once [bytes].
        temporary_bytes: memory beside arguments and results [bytes].
        reused_bytes: arguments whose memory the results take [bytes].
    """

    flop: float
    accessed_bytes: float
    temporary_bytes: float
    reused_bytes: float


def compiled_cost(function: Callable[..., Any], *arguments: Any, donate: tuple[int, ...] = ()) -> Compiled:
    """Compile a function for arguments, or their shapes, and ask what it costs.

    Args:
        donate: arguments whose memory may be taken, by position.
    """
    compiled: Any = jax.jit(function, donate_argnums=donate).lower(*arguments).compile()
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    return Compiled(
        flop=float(cost["flops"]),
        accessed_bytes=float(cost["bytes accessed"]),
        temporary_bytes=float(memory.temp_size_in_bytes),
        reused_bytes=float(memory.alias_size_in_bytes),
    )
