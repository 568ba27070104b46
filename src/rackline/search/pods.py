"""What a container of an engine asks of Kubernetes: chips, node, image, shared memory, probes, where weights come from.

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
from rackline.search.launch import LaunchCommand

Document = dict[str, Any]

_SHARED_GIB_PER_CHIP, _LEAST_SHARED_GIB = 2, 8  # 15 GiB for 8 chips in LeaderWorkerSet's example; 8 is Dynamo's default
_STARTS_WITHIN_S = 7200  # loading weights and compiling; Dynamo's own start-up probe waits as long
_PROBED_EVERY_S = 10
_SECRET = "hf-token-secret"
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
        "startupProbe": {**asked, "failureThreshold": _STARTS_WITHIN_S // _PROBED_EVERY_S},
        "readinessProbe": {**asked, "failureThreshold": 3},
        "livenessProbe": {**asked, "failureThreshold": 6},
    }


def hub_token() -> Document:
    """The token of the Hugging Face Hub from a secret, for models that need one."""
    return {
        "name": "HF_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": _SECRET, "key": "HF_TOKEN", "optional": True}},
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
