"""A plan's answer as it is launched: commands, and manifests in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rackline.api.option import Option
from rackline.errors import InputError

if TYPE_CHECKING:
    from rackline.hardware import Cluster
    from rackline.search import Plan
    from rackline.search.launch import Checkpoints, LaunchCommand

KINDS = ("kubernetes", "dynamo")
LAUNCH_AS = Option(
    kind="text",
    help="write manifests of the answer to a YAML file: kubernetes FILE (Deployment or LeaderWorkerSet, Service) or "
    "dynamo FILE (DynamoGraphDeployment)",
    choices=KINDS,
    before_file=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """What launching a plan's answer needs.

    Args:
        plan: the plan.
        checkpoints: what can be loaded.
        stack: engine that runs it.
        version: of the engine; empty where it was not named.
        prefill_cluster: of the prefill pool, where that is another one.
    """

    plan: Plan
    checkpoints: Checkpoints
    stack: str
    version: str = ""
    prefill_cluster: Cluster | None = None

    def commands(self, version: str = "", *, leftover: bool = False) -> list[LaunchCommand]:
        """Command lines of one replica of each kind; none without an answer.

        Args:
            version: of the engine, where none was named.
            leftover: also of the engine on paid chips that the others leave free.
        """
        from rackline.search.launch import plan_commands

        return plan_commands(
            self.plan,
            self.checkpoints,
            self.stack,
            self.version or version,
            self.prefill_cluster,
            leftover=leftover,
        )


def manifests_of(starting: Starting, kind: str) -> str:
    """Manifests of a plan's answer as YAML.

    Args:
        kind: one of KINDS.

    Raises:
        InputError: no answer, or one that cannot be expressed.
    """
    from rackline.report.manifest_file import manifest_text
    from rackline.search.dynamo import dynamo_manifests, engine_version
    from rackline.search.kubernetes import kubernetes_manifests, routing_note

    plan, best = starting.plan, starting.plan.best
    if best is None:
        raise InputError(what="launch_as", given=kind, allowed=f"a plan that has an answer; {plan.reason}")
    of_dynamo = kind == "dynamo"
    commands = starting.commands(engine_version(starting.stack) if of_dynamo else "", leftover=not of_dynamo)
    prefill = starting.prefill_cluster or plan.cluster
    places = [prefill if command.role == "prefill" else plan.cluster for command in commands]
    name = f"{plan.model.name}-{plan.cluster.name}"
    make = dynamo_manifests if kind == "dynamo" else kubernetes_manifests
    documents = make(commands, places, name)
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
        f"{plan.model.name} on {best.num_chips} chips of {plan.cluster.name}: {replicas}",
        f"expected: {rate:.3g} requests/s of {plan.workload.input_len:.0f} + "
        f"{plan.workload.output_len:.0f} tokens, time to first token {best.ttft_s:.3g} s, "
        f"{best.tpot_s * 1e3:.3g} ms per output token",
        "network devices (RDMA) and volumes that keep the weights are the cluster's own: add them to the pods",
    ]
    notes = [left, "" if of_dynamo else routing_note(commands)]
    return manifest_text(documents, [*about, *filter(None, notes)])
