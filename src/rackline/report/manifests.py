"""Manifests that start a plan's answer: Compose, Kubernetes, Dynamo and llm-d, with what to expect of them."""

from __future__ import annotations

from dataclasses import replace

from rackline.errors import InputError
from rackline.report.exports import manifest_text
from rackline.search import containers, kubernetes
from rackline.search.launch_plan import plan_commands
from rackline.search.starting import Starting
from rackline.units import several


def manifests_of(starting: Starting, kind: str) -> str:
    """Return the manifests of a plan's answer as YAML.

    Args:
        kind: compose, kubernetes, dynamo or llm-d.

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
    commands = plan_commands(plan, starting.checkpoints, options, leftover=not of_dynamo)
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
    replicas = ", ".join(f"{one.replicas} x {several(one.chips_per_replica, 'chip')} ({one.role})" for one in commands)
    rate = best.requests_per_s if of_dynamo else best.requests_per_s_with_leftover
    about = [
        f"{plan.system.model.name} on {several(best.num_chips, 'chip')} of {plan.system.cluster.name}: {replicas}",
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
    return manifest_text(documents, [*about, *filter(None, notes)])
