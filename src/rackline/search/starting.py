"""What it takes to launch a plan's answer: checkpoints, drafts that pay, memory of the host, and the commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rackline.arch import Model
from rackline.errors import RacklineError
from rackline.hardware import memory_tier
from rackline.search.extensions import SpeculationRow, paying_drafts
from rackline.search.inputs import PlanInputs
from rackline.search.kept_prefixes import KeptPrefixes
from rackline.search.launch import Drafts
from rackline.search.launch_commands import LaunchCommand, deployment_commands
from rackline.search.launch_plan import Checkpoints, LaunchOptions, plan_commands
from rackline.search.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """What launching a plan's answer needs.

    Args:
        plan: the plan.
        checkpoints: what can be loaded.
        options: what the engines are told beside.
        kept_prefixes: whether prompts repeat their prefixes.
    """

    plan: Plan
    checkpoints: Checkpoints
    options: LaunchOptions
    kept_prefixes: bool = False

    def commands(self) -> list[LaunchCommand]:
        """Commands of all replicas and of the router in front of them; none without an answer.

        Raises:
            InputError: an engine whose options were not read.
        """
        commands = plan_commands(self.plan, self.checkpoints, self.options, leftover=True)
        return deployment_commands(commands, kept_prefixes=self.kept_prefixes)


def launch_options(
    asked: PlanInputs,
    found: Plan,
    rows: Sequence[SpeculationRow] | None,
    prefixes: KeptPrefixes | None,
) -> LaunchOptions:
    """What the engines of a plan's answer are told beside their layout: drafts that pay, memory of the host.

    Args:
        rows: of the plan's speculation; None where it was not asked for.
        prefixes: that the answer keeps; None where prompts do not repeat.
    """
    model, notes = found.system.model, list[str]()
    drafts: Drafts | None = None
    row = None if rows is None else paying_drafts(found, rows)
    if row is not None and isinstance(model, Model):
        count = row.speculation.draft_tokens
        if model.draft is not None:
            drafts = Drafts(tokens=count, model_id=asked.draft_id, is_head=model.draft.num_layers == 1)
        elif model.mtp_layers:
            drafts = Drafts(tokens=count)
        else:
            notes.append(f"{count} drafts a step would pay: name a head or a small model with --draft")
    behind = prefixes.tiers[1:] if prefixes is not None else ()
    notes += [f"prefixes in {tier.name}: its options were not read" for tier in behind if not _is_host(tier.name)]
    return LaunchOptions(
        stack=asked.engine,
        version=asked.version,
        prefill_on=asked.prefill_cluster,
        drafts=drafts,
        host_cache_bytes=sum(tier.capacity_bytes for tier in behind if _is_host(tier.name)),
        notes=tuple(notes),
    )


def _is_host(name: str) -> bool:
    """Whether a tier is the memory of the host: as the help of `--tier` calls it, or by its name in the catalogue."""
    try:
        return name.lower() in ("host", "dram", "cpu") or memory_tier(name).name == "ddr5-host"
    except RacklineError:  # a memory of the user's own
        return False
