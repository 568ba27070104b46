"""A plan's deployment as Kubernetes manifests: a Deployment, or a LeaderWorkerSet over several hosts, and a Service.

The commands are those of `launch`, with the addresses of a group's hosts from the variables that LeaderWorkerSet sets
(leaderworkerset.x-k8s.io/v1). Two pools are two workloads that move KV caches by their connector; the router that sends
a prompt to one and its cache to the other is another program.

Names of resources, node labels and images are data of the catalogue (`orchestrators`). Shared memory, probes and the
secret of the Hugging Face Hub follow the examples of LeaderWorkerSet and Dynamo (read on 2026-11-22).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rackline.catalog import OrchestratorRecord, orchestrator_record
from rackline.errors import InputError
from rackline.hardware import Chip, Cluster
from rackline.search.launch import HOST, RANK, LaunchCommand
from rackline.search.launch_places import PORT, Start
from rackline.search.launch_plan import router_name

Document = dict[str, Any]

_SHARED_GIB_PER_CHIP, _LEAST_SHARED_GIB = 2, 8  # 15 GiB for 8 chips in LeaderWorkerSet's example; 8 is Dynamo's default
STARTS_WITHIN_S = 7200  # loading weights and compiling; Dynamo's own start-up probe waits as long
_PROBED_EVERY_S = 10
SECRET = "hf-token-secret"
_LONGEST_NAME = 52  # a service has 63 letters, pods of a group add an index
ROLE_NAMES: dict[str, str] = {"both": "", "prefill": "prefill", "decode": "decode"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Replicas of one command.

    Args:
        name: of the workload, as Kubernetes allows it.
        command: what a replica runs.
        on: the cluster that it runs on.
    """

    name: str
    command: LaunchCommand
    on: Cluster

    @property
    def chips_per_host(self) -> int:
        """Chips that one of its pods asks for [count]."""
        return self.command.chips_per_replica // self.command.num_hosts

    @property
    def in_one_domain(self) -> bool:
        """Whether its hosts are joined by the scale-up links of a rack."""
        return self.command.num_hosts > 1 and self.on.scale_up.size > self.on.host_chips


def workloads(
    record: OrchestratorRecord, commands: Sequence[LaunchCommand], places: Sequence[Cluster], name: str
) -> list[Workload]:
    """The workloads of a plan's commands.

    Args:
        record: what runs them.
        commands: as `plan_commands` gives them.
        places: the cluster of each.
        name: of the deployment.

    Raises:
        InputError: no command, one that does not run all of the plan, or chips that cannot be asked for.
    """
    if not commands:
        raise InputError(what="launch_as", given=name, allowed="a plan that has an answer")
    for command, on in zip(commands, places, strict=True):
        resource_of(record, on.chip)
        if command.lacks:
            allowed = f"a plan that {command.stack} can start; {command.lacks[0]}"
            raise InputError(what="launch_as", given=name, allowed=allowed)
    found: list[Workload] = []
    for number, (command, on) in enumerate(zip(commands, places, strict=True)):
        # an engine that does both after another command is the one on chips that the others leave free
        role = "beside" if number and command.role == "both" else ROLE_NAMES[command.role]
        found.append(Workload(name=kubernetes_name(name, role), command=command, on=on))
    return found


def kubernetes_name(*parts: str) -> str:
    """A name that Kubernetes allows for a workload and its service.

    >>> kubernetes_name("Qwen/Qwen3-32B on dgx-h100", "decode")
    'qwen-qwen3-32b-on-dgx-h100-decode'
    """
    text = "-".join(part for part in parts if part).lower()
    ending = f"-{parts[-1]}" if len(parts) > 1 and parts[-1] else ""
    plain = re.sub(r"[^a-z0-9]+", "-", text).strip("-")
    plain = plain if plain[:1].isalpha() else f"m-{plain}"
    if len(plain) <= _LONGEST_NAME:
        return plain
    return plain.removesuffix(ending)[: _LONGEST_NAME - len(ending)].rstrip("-") + ending


def resource_of(record: OrchestratorRecord, chip: Chip) -> str:
    """Name under which a chip is asked for.

    Raises:
        InputError: chips of this vendor have none.
    """
    found = record.resources.get(chip.vendor)
    if found is None:
        known = " and ".join(record.resources)
        raise InputError(
            what="launch_as", given=record.name, allowed=f"chips of {known}; {chip.name} is {chip.vendor}'s"
        )
    return found


def image_of(record: OrchestratorRecord, workload: Workload) -> str:
    """Container image of a workload's engine.

    Raises:
        InputError: none is known for this engine on this chip.
    """
    chip, command = workload.on.chip, workload.command
    by_chip = record.images.get(command.stack, {})
    found = by_chip.get(chip.name) or by_chip.get(chip.vendor)
    if found is None:
        allowed = f"an engine with an image for {chip.name}; none is known of {command.stack}"
        raise InputError(what="launch_as", given=record.name, allowed=allowed)
    return found.replace("{version}", command.version)


def pod_spec(container: Document, workload: Workload, record: OrchestratorRecord) -> Document:
    """A pod on a node with the workload's chip."""
    chip = workload.on.chip
    kubernetes = orchestrator_record("kubernetes")
    label, product = kubernetes.labels.get(chip.vendor), kubernetes.products.get(chip.name)
    return {
        **({"nodeSelector": {label: product}} if label and product else {}),
        "tolerations": [{"key": resource_of(record, chip), "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
    }


def chips_asked(workload: Workload, record: OrchestratorRecord) -> Document:
    """Chips that a container asks for; Kubernetes takes the limit as the request."""
    return {"limits": {resource_of(record, workload.on.chip): str(workload.chips_per_host)}}


def shared_memory(workload: Workload) -> str:
    """Size of /dev/shm, over which the ranks of a host exchange."""
    return f"{max(_SHARED_GIB_PER_CHIP * workload.chips_per_host, _LEAST_SHARED_GIB)}Gi"


def probes(port: int | str) -> Document:
    """Probes of a server that answers /health when it takes requests."""
    asked = {"httpGet": {"path": "/health", "port": port}, "periodSeconds": _PROBED_EVERY_S}
    return {
        "startupProbe": {**asked, "failureThreshold": STARTS_WITHIN_S // _PROBED_EVERY_S},
        "readinessProbe": {**asked, "failureThreshold": 3},
        "livenessProbe": {**asked, "failureThreshold": 6},
    }


def hub_token() -> Document:
    """The token of the Hugging Face Hub from a secret, for models that need one."""
    return {
        "name": "HF_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": SECRET, "key": "HF_TOKEN", "optional": True}},
    }


def pod_address(name: str) -> Document:
    """The pod's own address in an environment variable."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def rack_links(found: Sequence[Workload], name: str) -> tuple[list[Document], str]:
    """(documents, template's name) that give pods on several trays the NVLink of their rack; empty without such pods.

    A ComputeDomain of NVIDIA's DRA driver (resource.nvidia.com/v1beta1), as Dynamo's recipe for GB200 has it.

    Raises:
        InputError: replicas over several racks.
    """
    wide = [one for one in found if one.in_one_domain and one.on.chip.vendor == "NVIDIA"]
    if not wide:
        return [], ""
    chips, size = sum(one.command.replicas * one.command.chips_per_replica for one in wide), wide[0].on.scale_up.size
    if chips > size:
        allowed = f"replicas in one NVLink domain of {size}; these take {chips}: plan one rack and repeat it"
        raise InputError(what="launch_as", given=f"{chips} chips", allowed=allowed)
    template = f"{name}-channel"
    domain = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": name},
        "spec": {
            "numNodes": sum(one.command.replicas * one.command.num_hosts for one in wide),
            "channel": {"resourceClaimTemplate": {"name": template}},
        },
    }
    return [domain], template


def with_rack_links(pod: Document, template: str) -> Document:
    """The pod with a channel of the rack's NVLink."""
    first, *others = pod["containers"]
    asked = {**first["resources"], "claims": [{"name": "nvlink-channel"}]}
    claims = [{"name": "nvlink-channel", "resourceClaimTemplateName": template}]
    return {**pod, "containers": [{**first, "resources": asked}, *others], "resourceClaims": claims}


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
