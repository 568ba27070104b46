"""A plan's answer as it is launched: commands, and manifests in a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rackline.api.plan_parts import PlanInputs
from rackline.api.question import Option
from rackline.errors import InputError, RacklineError
from rackline.late import late

with late:
    from rackline import arch, hardware, search
    from rackline.report import exports
    from rackline.search import (
        containers,
        extensions,
        kept_prefixes as search_kept_prefixes,
        kubernetes,
        launch,
        launch_commands,
        launch_plan,
    )


KINDS = ("compose", "kubernetes", "dynamo", "llm-d")
LAUNCH_AS = Option(
    kind="text",
    help="write the answer to a YAML file that starts it: compose FILE (containers of one host, with the router), "
    "kubernetes FILE (Deployment or LeaderWorkerSet, Service), dynamo FILE (DynamoGraphDeployment) or llm-d FILE "
    "(model servers with the labels of llm-d's router)",
    choices=KINDS,
    before_file=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """What launching a plan's answer needs.

    Args:
        plan: the plan.
        checkpoints: what can be loaded.
        options: what the engines are told beside.
        kept_prefixes: whether prompts repeat their prefixes.
    """

    plan: search.Plan
    checkpoints: launch_plan.Checkpoints
    options: launch_plan.LaunchOptions
    kept_prefixes: bool = False

    def commands(self) -> list[launch_commands.LaunchCommand]:
        """Commands of all replicas and of the router in front of them; none without an answer.

        Raises:
            InputError: an engine whose options were not read.
        """
        commands = launch_plan.plan_commands(self.plan, self.checkpoints, self.options, leftover=True)
        return launch_commands.deployment_commands(commands, kept_prefixes=self.kept_prefixes)


def launch_options(
    asked: PlanInputs,
    found: search.Plan,
    rows: Sequence[extensions.SpeculationRow] | None,
    prefixes: search_kept_prefixes.KeptPrefixes | None,
) -> launch_plan.LaunchOptions:
    """What the engines of a plan's answer are told beside their layout: drafts that pay, memory of the host.

    Args:
        rows: of the plan's speculation; None where it was not asked for.
        prefixes: that the answer keeps; None where prompts do not repeat.
    """
    model, notes = found.system.model, list[str]()
    drafts: launch.Drafts | None = None
    row = None if rows is None else extensions.paying_drafts(found, rows)
    if row is not None and isinstance(model, arch.Model):
        count = row.speculation.draft_tokens
        if model.draft is not None:
            drafts = launch.Drafts(tokens=count, model_id=asked.draft_id, is_head=model.draft.num_layers == 1)
        elif model.mtp_layers:
            drafts = launch.Drafts(tokens=count)
        else:
            notes.append(f"{count} drafts a step would pay: name a head or a small model with --draft")
    behind = prefixes.tiers[1:] if prefixes is not None else ()
    notes += [f"prefixes in {tier.name}: its options were not read" for tier in behind if not _is_host(tier.name)]
    return launch_plan.LaunchOptions(
        stack=asked.engine or found.system.calibration.name,
        version=asked.version,
        prefill_on=asked.prefill_cluster,
        drafts=drafts,
        host_cache_bytes=sum(tier.capacity_bytes for tier in behind if _is_host(tier.name)),
        notes=tuple(notes),
    )


def _is_host(name: str) -> bool:
    """Whether a tier is the memory of the host: as the help of `--tier` calls it, or by its name in the catalogue."""
    try:
        return name.lower() in ("host", "dram", "cpu") or hardware.memory_tier(name).name == "ddr5-host"
    except RacklineError:  # a memory of the user's own
        return False


def manifests_of(starting: Starting, kind: str) -> str:
    """Manifests of a plan's answer as YAML.

    Args:
        kind: one of KINDS.

    Raises:
        InputError: no answer, or one that cannot be expressed.
    """
    plan, best = starting.plan, starting.plan.best
    if best is None:
        raise InputError(what="launch_as", given=kind, allowed=f"a plan that has an answer; {plan.reason}")
    of_dynamo = kind == "dynamo"
    options = starting.options
    if of_dynamo and not options.version:
        options = replace(options, version=kubernetes.engine_version(options.stack))
    commands = launch_plan.plan_commands(plan, starting.checkpoints, options, leftover=not of_dynamo)
    prefill = options.prefill_on or plan.system.cluster
    places = [prefill if command.role == "prefill" else plan.system.cluster for command in commands]
    name = f"{plan.system.model.name}-{plan.system.cluster.name}"
    documents: list[kubernetes.Document]
    match kind:
        case "compose":
            documents = [containers.compose_file(commands, places, name, kept_prefixes=starting.kept_prefixes)]
        case "llm-d":
            documents = kubernetes.llm_d_manifests(commands, places, name)
        case "dynamo":
            documents = kubernetes.dynamo_manifests(commands, places, name)
        case _:
            documents = kubernetes.kubernetes_manifests(commands, places, name)
    beside = best.leftover
    left = (
        f"{beside.num_chips} paid chips stay free: Dynamo's graph has one kind of worker for both, the manifests of "
        "Kubernetes an engine for them as well"
        if of_dynamo and beside is not None
        else ""
    )
    replicas = ", ".join(f"{one.replicas} x {one.chips_per_replica} chips ({one.role})" for one in commands)
    rate = best.requests_per_s if of_dynamo else best.requests_per_s_with_leftover
    about = [
        f"{plan.system.model.name} on {best.num_chips} chips of {plan.system.cluster.name}: {replicas}",
        f"expected: {rate:.3g} requests/s of {plan.demand.workload.input_len:.0f} + "
        f"{plan.demand.workload.output_len:.0f} tokens, time to first token {best.ttft_s:.3g} s, "
        f"{best.tpot_s * 1e3:.3g} ms per output token",
        "requests are taken from this host alone: take the 127.0.0.1 away where others send them"
        if kind == "compose"
        else "network devices (RDMA) and volumes that keep the weights are the cluster's own: add them to the pods",
    ]
    notes = [left, kubernetes.routing_note(commands) if kind == "kubernetes" else ""]
    if kind == "llm-d":
        notes += kubernetes.router_lines(commands, name)
    return exports.manifest_text(documents, [*about, *filter(None, notes)])
