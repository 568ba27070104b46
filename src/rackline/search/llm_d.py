"""A plan's deployment as llm-d runs it: model servers with the labels by which its router finds them.

llm-d's guides apply model servers as plain Deployments or LeaderWorkerSets, patched by Kustomize, and install the
router, which picks the server of each request by prefix and load, from its own Helm chart. The decode servers of two
pools stand behind a side car that sends each prompt to a prefill server first. Labels, ports and side car follow
guides/optimized-baseline and guides/pd-disaggregation (@05b03f7, @34272a6, @9829045, read on 2026-11-25).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rackline.catalog import orchestrator_record
from rackline.errors import InputError
from rackline.hardware import Cluster
from rackline.search.kubernetes import (
    SECRET,
    Document,
    image_of,
    kubernetes_manifests,
    kubernetes_name,
    probes,
    workloads,
)
from rackline.search.launch import LaunchCommand
from rackline.search.launch_places import PORT

_BEHIND_PORT = 8200  # of an engine behind the side car, which takes the port of the others
_CONNECTORS = {"vllm": "nixlv2", "sglang": "sglang"}
_ENGINE_LABEL = "inference.networking.k8s.io/engine-type"
_RAW = "https://raw.githubusercontent.com/llm-d/llm-d"


def llm_d_manifests(commands: Sequence[LaunchCommand], places: Sequence[Cluster], name: str) -> list[Document]:
    """Documents of the model servers of a deployment; the router is installed by `router_lines`.

    Args:
        commands: as `plan_commands` gives them.
        places: the cluster of each.
        name: of the deployment, which is the guide's name of its labels.

    Raises:
        InputError: what llm-d cannot express, or an engine that its router does not know.
    """
    record, guide = orchestrator_record("llm-d"), kubernetes_name(name)
    by_name = {one.name: one for one in workloads(record, commands, places, name)}
    for one in by_name.values():
        image_of(record, one)
        if one.command.is_pool and one.command.num_hosts > 1:
            allowed = "pools whose replicas stand on one host each; llm-d's guide for more has other manifests"
            raise InputError(what="launch_as", given=f"{one.command.num_hosts} hosts a replica", allowed=allowed)
    found: list[Document] = []
    for document in kubernetes_manifests(commands, places, name):
        if document["kind"] == "Service":  # the router finds pods by their labels
            continue
        one = by_name.get(document["metadata"]["name"])
        if one is None or document["kind"] not in ("Deployment", "LeaderWorkerSet"):
            found.append(document)
            continue
        labels = {
            "llm-d.ai/guide": guide,
            "llm-d.ai/inference-serving": "true",
            "llm-d.ai/role": one.command.role if one.command.is_pool else "decode",
            _ENGINE_LABEL: one.command.stack,
        }
        template = _template(document)
        template["metadata"]["labels"] |= labels
        document["metadata"]["labels"] = {**document["metadata"]["labels"], **labels}
        if one.command.role == "decode":
            _behind(template["spec"], one.command.stack)
        found.append(document)
    return found


def _template(document: Document) -> dict[str, Any]:
    """The pods that take requests, with labels of their own."""
    spec, groups = document["spec"], document["kind"] == "LeaderWorkerSet"
    template: dict[str, Any] = spec["leaderWorkerTemplate"]["leaderTemplate"] if groups else spec["template"]
    template["metadata"] = {**template["metadata"], "labels": dict(template["metadata"]["labels"])}
    return template


def _behind(pod: dict[str, Any], stack: str) -> None:
    """Put a decode server behind the side car that has its prompts computed elsewhere."""
    engine = pod["containers"][0]
    key = "args" if "args" in engine else "command"
    engine[key] = [str(_BEHIND_PORT) if word == str(PORT) else word for word in engine[key]]
    engine["ports"] = [{"name": "engine", "containerPort": _BEHIND_PORT}]
    engine |= probes("engine")
    pod["initContainers"] = [
        {
            "name": "routing-proxy",
            "image": orchestrator_record("llm-d").images["side-car"]["any"],
            "args": [
                f"--port={PORT}",
                f"--model-server-port={_BEHIND_PORT}",
                f"--kv-connector={_CONNECTORS[stack]}",
                "--secure-serving=false",
            ],
            "ports": [{"name": "http", "containerPort": PORT}],
            "restartPolicy": "Always",  # which makes an init container a side car
            "securityContext": {"allowPrivilegeEscalation": False, "runAsNonRoot": True},
        },
    ]


def router_lines(commands: Sequence[LaunchCommand], name: str) -> list[str]:
    """How llm-d's router is installed in front of the servers, and where requests go then."""
    record, guide = orchestrator_record("llm-d"), kubernetes_name(name)
    pools = any(command.is_pool for command in commands)
    values = "pd-disaggregation" if pools else "optimized-baseline"
    guides = f"{_RAW}/v{record.version}/guides"
    return [
        f"the router of llm-d {record.version} finds these pods by the label llm-d.ai/guide; install it with",
        f"helm install {guide} oci://ghcr.io/llm-d/charts/llm-d-router-standalone"
        f" --version v{record.engines['router']} -f {guides}/recipes/router/base.values.yaml"
        f" -f {guides}/{values}/router/{values}.values.yaml"
        f" --set-string 'router.modelServers.matchLabels.llm-d\\.ai/guide={guide}'",
        f"requests go to port 80 of the service {guide}-epp; a gated model needs the secret {SECRET}, key HF_TOKEN",
        "a resource of Kustomize as it is: `resources: [FILE]` in a kustomization.yaml, with your patches",
    ]
