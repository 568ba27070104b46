"""Feed-forward kinds: dense and mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass

from rackline.arch.shapes import Dim, Projection

GATED = frozenset({"swiglu", "geglu"})


def expert_matrices(activation: str) -> int:
    """Weight matrices of one feed-forward block: 3 when gated (gate, up, down), else 2 (up, down)."""
    return 3 if activation in GATED else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFfn:
    """A dense feed-forward block: d_model → d_ff → d_model."""

    activation: str
    d_ff: int
    bias: bool = False

    def projections(self, d_model: int, prefix: str = "ffn") -> tuple[Projection, ...]:
        """Up (with the gate fused into it) and down; nothing where the layer has no feed-forward block."""
        if not self.d_ff:
            return ()
        inner = Dim(size=self.d_ff, units=self.d_ff)
        up = (inner,) * (expert_matrices(self.activation) - 1)
        model = Dim(size=d_model)
        return (
            Projection(name=f"{prefix}_up", d_in=(model,), d_out=up, bias=self.bias),
            Projection(name=f"{prefix}_down", d_in=(inner,), d_out=(model,), bias=self.bias),
        )

    def params(self, d_model: int) -> int:
        """Parameters of the block [elements]."""
        return sum(p.params for p in self.projections(d_model))


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeFfn:
    """A mixture of experts: a router picks experts_per_token of num_experts; shared experts see every token.

    Args:
        d_expert: width of one routed expert [elements].
        d_shared: width of all shared experts together [elements], 0 for none.
        d_latent: width to which tokens are projected for the routed experts, 0 for none [elements].
        router_bias: whether the router has a bias per expert.
        extra_params: parameters that belong to no product [elements].
        num_groups, groups_per_token: a token picks its experts from `groups_per_token` of the groups (node-limited
            routing).
    """

    activation: str
    num_experts: int
    experts_per_token: int
    d_expert: int
    d_shared: int = 0
    bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    d_latent: int = 0
    extra_params: int = 0
    num_groups: int = 1
    groups_per_token: int = 1

    def expert_d_in(self, d_model: int) -> int:
        """Width of the tokens that the routed experts see [elements]."""
        return self.d_latent or d_model

    def latent(self, d_model: int) -> tuple[Projection, ...]:
        """Projections into the latent and out of it, on every token; () without one."""
        if not self.d_latent:
            return ()
        model, latent = Dim(size=d_model), Dim(size=self.d_latent)
        return (
            Projection(name="latent_down", d_in=(model,), d_out=(latent,)),
            Projection(name="latent_up", d_in=(latent,), d_out=(model,)),
        )

    @property
    def matrices(self) -> int:
        """Weight matrices of one expert."""
        return expert_matrices(self.activation)

    def shared(self) -> DenseFfn | None:
        """The shared experts as one dense block."""
        return DenseFfn(activation=self.activation, d_ff=self.d_shared) if self.d_shared else None

    def expert_params(self, d_model: int) -> int:
        """Parameters of one routed expert [elements]."""
        width = self.expert_d_in(d_model)
        biases = (self.matrices - 1) * self.d_expert + width if self.bias else 0
        return self.matrices * width * self.d_expert + biases

    def router_params(self, d_model: int) -> int:
        """Parameters of the router (and of the gate of the shared experts, and of extra_params) [elements]."""
        router = d_model * self.num_experts + (self.num_experts if self.router_bias else 0)
        return router + (d_model if self.shared_gate else 0) + self.extra_params

    def latent_params(self, d_model: int) -> int:
        """Parameters of the projections into the latent and back [elements]."""
        return sum(p.params for p in self.latent(d_model))

    def shared_params(self, d_model: int) -> int:
        """Parameters of the shared experts [elements]."""
        shared = self.shared()
        return shared.params(d_model) if shared else 0
