"""Launch rules of serving engines: the layouts and data types that an engine refuses to start, and why.

The words of a refusal are in `catalog/data/launch_rules`. Which engine is taken is in `rackline.bands.defaults`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from rackline.arch import AnyModel, DenseFfn, Model
from rackline.catalog import LaunchRule, launch_rules_record, names
from rackline.errors import InputError
from rackline.hardware import Cluster
from rackline.parallel import Layout, LayoutGrid, Precision
from rackline.parallel.precision import stored_precision
from rackline.passes import Calibration
from rackline.passes.features import Array, as_array
from rackline.serving.workload import Mode

Role = Literal["both", "prefill", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A configuration that an engine is asked to launch.

    Args:
        sharding: one layout, or many as arrays.
        mode: scheduler; only an engine that does both has a choice of admission.
        cp: ranks that share a context [count].
    """

    model: AnyModel
    cluster: Cluster
    sharding: Layout | LayoutGrid
    precision: Precision
    mode: Mode
    role: Role
    cp: int = 1

    @property
    def hosts(self) -> Array:
        """Hosts that a replica spans [count]."""
        return np.ceil(as_array(self.sharding.chips_per_replica) / self.cluster.host_chips)

    @property
    def whole(self) -> Array:
        """Whether experts are spread over all attention-dp ranks."""
        return self.split & (self.sharding.ep == self.group)

    @property
    def group(self) -> Array:
        """Ranks that experts are spread over [chips]."""
        return as_array(self.sharding.tp) * self.sharding.attention_dp

    @property
    def split(self) -> Array:
        """Whether attention-dp ranks hold different sequences."""
        return as_array(self.sharding.attention_dp) > 1


Check = Callable[[LaunchRule, Asked], "Array | bool"]


def _unequal_experts(rule: LaunchRule, asked: Asked) -> Array | bool:
    moe = asked.model.moe() if isinstance(asked.model, Model) else None
    if moe is None:
        return False
    return (moe.num_experts % asked.sharding.ep != 0) & ~asked.whole


def _odd_exchange(rule: LaunchRule, asked: Asked) -> Array:
    host = asked.cluster.host_chips
    inside = np.isin(asked.group, rule.sizes or ())
    suits = np.where(asked.group <= host, inside, asked.group % host == 0)
    return asked.split & (asked.sharding.ep > 1) & ~suits


def _cut_groups(rule: LaunchRule, asked: Asked) -> Array | bool:
    """Check whether a rank's share of a feed-forward block cuts through weights with a common scale.

    Experts that the checkpoint stores in mxfp4 are dealt out in whole blocks (`rackline.parallel.work.expert_width`).
    """
    model, groups = asked.model, rule.groups or {}
    if not isinstance(model, Model):
        return False
    cut: Array | bool = False
    dense, routed = groups.get(asked.precision.linear_weights), groups.get(asked.precision.expert_weights)
    if asked.precision.expert_weights == "mxfp4" == stored_precision("native", model).expert_weights:
        routed = None
    tp, moe_tp, moe = as_array(asked.sharding.tp), as_array(asked.sharding.moe_tp), model.moe()
    for layers in model.layer_groups:
        if dense and isinstance(layers.ffn, DenseFfn):
            cut = cut | ((tp > 1) & ((layers.ffn.d_ff // tp) % dense != 0))
    if routed and moe is not None:
        cut = cut | ((moe_tp > 1) & ((moe.d_expert // moe_tp) % routed != 0))
    return cut


def _lacking(rule: LaunchRule, asked: Asked) -> bool:
    lacking = (rule.lacking or {}).get(asked.cluster.chip.generation, ())
    return asked.precision.linear_weights in lacking or asked.precision.expert_weights in lacking


CHECKS: Mapping[str, Check] = {
    "same_chips_on_each_host": lambda _, asked: asked.sharding.chips_per_replica % asked.hosts != 0,
    "expert_group_whole": lambda _, asked: (asked.sharding.ep != 1) & (asked.sharding.ep != asked.group),
    "experts_equal": _unequal_experts,
    "exchange_ranks": _odd_exchange,
    "attention_whole_or_split": lambda _, asked: asked.split & (asked.sharding.tp > 1),
    "decode_pool_unpipelined": lambda _, asked: (asked.sharding.pp > 1) & (asked.role == "decode"),
    "context_whole": lambda _, asked: asked.cp > 1 and asked.role == "decode",
    "prefill_context_whole": lambda _, asked: asked.cp > 1 and asked.role == "prefill",
    "admissions": lambda rule, asked: asked.role == "both" and asked.mode.admission not in (rule.admissions or ()),
    "mixed_unpipelined": lambda _, asked: (
        (asked.sharding.pp > 1) & (asked.role == "both" and asked.mode.admission == "chunked")
    ),
    "overlap_whole_group": lambda _, asked: ~asked.whole & asked.mode.two_batch_overlap,
    "no_overlap": lambda _, asked: asked.mode.two_batch_overlap,
    "scale_groups": _cut_groups,
    "vendors": lambda rule, asked: asked.cluster.chip.vendor not in (rule.vendors or ()),
    "weights_of_chip": _lacking,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRules:
    """The launch rules of one engine in one version.

    Args:
        engine: name of the engine.
        version: version of the engine; by default the newest with known rules.
        rules: the rules of the version by name.
    """

    engine: str
    version: str
    rules: Mapping[str, LaunchRule] = field(repr=False)

    def broken(self, asked: Asked) -> Iterator[tuple[str, LaunchRule, Array]]:
        """(name, rule, whether each layout breaks it, shape (layouts,)) of every rule."""
        size = len(asked.sharding) if isinstance(asked.sharding, LayoutGrid) else 1
        for name, rule in self.rules.items():
            yield name, rule, np.broadcast_to(as_array(CHECKS[name](rule, asked)), (size,)).astype(bool)

    def launches(self, asked: Asked) -> Array:
        """Whether the engine starts each layout, shape (layouts,)."""
        size = len(asked.sharding) if isinstance(asked.sharding, LayoutGrid) else 1
        return ~np.logical_or.reduce([np.zeros(size, dtype=bool), *(breaks for _, _, breaks in self.broken(asked))])

    def refusal(self, asked: Asked) -> str | None:
        """Why the engine does not launch a layout, in one line; None if it does."""
        says = (rule.says for _, rule, breaks in self.broken(asked) if breaks[0])
        return next((f"{self.engine} {self.version} does not launch it: {why}" for why in says), None)


def launch_rules(engine: str, version: str = "") -> LaunchRules:
    """The rules of an engine by name or file.

    Args:
        version: such as "0.12"; the newest that was read when it is empty.

    Raises:
        UnknownNameError, CatalogError: as the catalogue.
        InputError: a version without a number.
    """
    record = launch_rules_record(engine)
    at = version_numbers(version or record.version, version)
    kept = {
        name: rule
        for name, rule in record.rules.items()
        if (rule.since is None or at >= version_numbers(rule.since))
        and (rule.before is None or at < version_numbers(rule.before))
    }
    return LaunchRules(engine=record.name, version=version or record.version, rules=kept)


def rules_of(calibration: Calibration) -> LaunchRules | None:
    """The rules of the engine whose kernels a calibration holds; none for the blackboard."""
    if calibration.name == "unit":
        return None
    return launch_rules(calibration.name if calibration.name in names("launch_rules") else "generic")


def version_numbers(version: str, given: str = "") -> tuple[int, ...]:
    """A version as numbers that compare.

    Args:
        given: what an error names.

    Raises:
        InputError: it does not begin with a number.
    """
    found = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    if found is None:
        raise InputError(what="version", given=given or version, allowed="a number such as 0.12.0")
    return tuple(int(part) for part in found.group(1).split("."))
