"""A plan's deployment as Kubernetes manifests: a Deployment, or a LeaderWorkerSet over several hosts, and a Service.

The commands are those of `launch`, with the addresses of a group's hosts from the variables that LeaderWorkerSet sets
(leaderworkerset.x-k8s.io/v1). Two pools are two workloads that move KV caches by their connector; the router that sends
a prompt to one and its cache to the other is another program.
"""

from __future__ import annotations

from collections.abc import Sequence

from rackline.catalog import orchestrator_record
from rackline.errors import InputError
from rackline.hardware import Cluster
from rackline.search.launch import HOST, RANK, LaunchCommand
from rackline.search.launch_places import PORT, Start
from rackline.search.launch_router import router_name
from rackline.search.pods import (
    Document,
    Workload,
    chips_asked,
    hub_token,
    image_of,
    kubernetes_name,
    pod_address,
    pod_spec,
    probes,
    rack_links,
    shared_memory,
    with_rack_links,
    workloads,
)

_LEADER, _RANK = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"
_OPTIONS = "/etc/engine"
_ADDRESS = Start(host=0)  # every pod has an address of its own


def kubernetes_manifests(commands: Sequence[LaunchCommand], places: Sequence[Cluster], name: str) -> list[Document]:
    """Documents of a deployment, in the order in which they are applied.

    Args:
        commands: as `plan_commands` gives them.
        places: the cluster of each.
        name: of the deployment.

    Raises:
        InputError: what Kubernetes, or an image of the engine, cannot express.
    """
    found = workloads(orchestrator_record("kubernetes"), commands, places, name)
    documents, template = rack_links(found, kubernetes_name(name))
    for one in found:
        documents += _options(one)
        pod = _pod(one)
        pod = with_rack_links(pod, template) if one.in_one_domain else pod
        documents.append(_group(one, pod) if one.command.num_hosts > 1 else _deployment(one, pod))
        documents.append(_service(one))
    return documents


def routing_note(commands: Sequence[LaunchCommand]) -> str:
    """What is missing in front of two pools, or of two engines; empty for one engine."""
    if len(commands) < 2:
        return ""
    if all(command.role == "both" for command in commands):
        return (
            "requests are shared by the two services in the ratio of their rates; what shares them is not in this file"
        )
    known = router_name(commands[0].stack)
    return f"requests reach the two pools by a router ({known}), which is not part of this file; Dynamo brings one"


def _labels(one: Workload) -> dict[str, str]:
    return {"app.kubernetes.io/name": one.name, "app.kubernetes.io/managed-by": "rackline"}


def _options(one: Workload) -> list[Document]:
    """The file of options that the engine reads, if it reads one."""
    if not one.command.options_file:
        return []
    text = "\n".join(one.command.options_file) + "\n"
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": one.name},
            "data": {one.command.options_name: text},
        },
    ]


def _pod(one: Workload) -> Document:
    record, command = orchestrator_record("kubernetes"), one.command
    mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    volumes: list[Document] = [
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": shared_memory(one)}},
    ]
    if command.options_file:
        mounts.append({"name": "options", "mountPath": _OPTIONS})
        volumes.append({"name": "options", "configMap": {"name": one.name}})
    side = [
        pod_address(name) if not value else {"name": name, "value": value}
        for name, value in (*command.env, *command.server_env(str(_ADDRESS.side_port), ""))
    ]
    container: Document = {
        "name": "engine",
        "image": image_of(record, one),
        **_started(command, leads=True),
        "env": [hub_token(), *side],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": chips_asked(one, record),
        "volumeMounts": mounts,
        **probes("http"),
    }
    return {**pod_spec(container, one, record), "volumes": volumes}


def _started(command: LaunchCommand, *, leads: bool) -> Document:
    """The command of a pod, on the first host of a replica or on another.

    Raises:
        InputError: an engine that is started over several hosts by MPI.
    """
    words = list(command.words)
    if command.stack == "trtllm":
        if command.num_hosts > 1:
            allowed = "replicas on one host: TensorRT-LLM starts over several by mpirun; Dynamo does that"
            raise InputError(what="launch_as", given="kubernetes", allowed=allowed)
        words = [f"{_OPTIONS}/{word}" if word == command.options_name else word for word in words]
    serving = command.server_words(str(_ADDRESS.port), str(_ADDRESS.side_port))
    if not leads:
        words = list(command.other_words)
    if leads or command.stack == "sglang":
        words += serving
    words = [word.replace(HOST, _LEADER).replace(RANK, _RANK) for word in words]
    if not words[-1].startswith("$(("):
        return {"command": words}
    first = f'exec "$@" {words.pop().replace("RANK", "LWS_WORKER_INDEX")}'
    return {"command": ["/bin/sh", "-c", first, "--"], "args": words}


def _deployment(one: Workload, pod: Document) -> Document:
    labels = _labels(one)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": one.name, "labels": labels},
        "spec": {
            "replicas": one.command.replicas,
            "selector": {"matchLabels": {"app.kubernetes.io/name": one.name}},
            # the chips of the old pods are free before new ones start: there are no others
            "strategy": {"type": "Recreate"},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _group(one: Workload, pod: Document) -> Document:
    """Pods on several hosts that start and fail together; only the first takes requests."""
    labels = _labels(one)
    engine, *others = pod["containers"]
    silent = {key: value for key, value in engine.items() if not key.endswith("Probe") and key not in ("ports", "args")}
    worker = {**pod, "containers": [{**silent, **_started(one.command, leads=False)}, *others]}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": one.name, "labels": labels},
        "spec": {
            "replicas": one.command.replicas,
            "leaderWorkerTemplate": {
                "size": one.command.num_hosts,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": {"metadata": {"labels": {**labels, "role": "leader"}}, "spec": pod},
                "workerTemplate": {"metadata": {"labels": {**labels, "role": "worker"}}, "spec": worker},
            },
        },
    }


def _service(one: Workload) -> Document:
    leader = {"role": "leader"} if one.command.num_hosts > 1 else {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": one.name, "labels": _labels(one)},
        "spec": {
            "selector": {"app.kubernetes.io/name": one.name, **leader},
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        },
    }
