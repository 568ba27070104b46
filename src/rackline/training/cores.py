"""What mixes tokens in a model: its attention cores, by label."""

from __future__ import annotations

from typing import Any

from rackline.arch import Attention, Model, MoeFfn, Projection


def cores_of(attention: Attention) -> tuple[Any, ...]:
    """Cores of a layer: one for most kinds, several where a layer attends in more than one way, none without."""
    several = getattr(attention, "cores", None)
    return tuple(several()) if several is not None else (attention,)


def cores(model: Model) -> dict[str, Any]:
    """All cores of a model by label."""
    return {core.kind: core for group in model.layer_groups for core in cores_of(group.attention)}


def routed_width(ffn: MoeFfn, d_model: int) -> float:
    """Width at which tokens reach the routed experts: d_model, or that of a latent [elements]."""
    return float(getattr(ffn, "d_latent", 0) or d_model)


def latent_projections(ffn: MoeFfn, d_model: int) -> tuple[Projection, ...]:
    """Projections into the latent of routed experts and out of it; () without one."""
    found: Any = getattr(ffn, "latent", None)
    return tuple(found(d_model)) if found is not None else ()


def latent_params(ffn: MoeFfn, d_model: int) -> float:
    """Parameters of these projections [elements]."""
    return float(sum(projection.params for projection in latent_projections(ffn, d_model)))
