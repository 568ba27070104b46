"""A plan's deployment on Kubernetes: as plain manifests, as a graph of NVIDIA Dynamo, as model servers of llm-d.

**Plain manifests**: a Deployment, or a LeaderWorkerSet over several hosts, and a Service. The commands are those of
`launch`, with the addresses of a group's hosts from the variables that LeaderWorkerSet sets
(leaderworkerset.x-k8s.io/v1). Two pools are two workloads that move KV caches by their connector; the router that sends
a prompt to one and its cache to the other is another program. Names of resources, node labels and images are data of
the catalogue (`orchestrators`). Shared memory, probes and the secret of the Hugging Face Hub follow the examples of
LeaderWorkerSet and Dynamo (read on 2026-11-22).

**Dynamo** (nvidia.com/v1beta1, kind DynamoGraphDeployment): a frontend, and a worker or a prefill and a decode
component. Its workers take the options of their engine; those that join the hosts of a replica are set by its operator
(deploy/operator/internal/dynamo/backend_vllm.go and the other two, read on 2026-11-22) and left out here.

**llm-d**: its guides apply model servers as plain Deployments or LeaderWorkerSets, patched by Kustomize, and install
the router, which picks the server of each request by prefix and load, from its own Helm chart. The decode servers of
two pools stand behind a side car that sends each prompt to a prefill server first. Labels, ports and side car follow
guides/optimized-baseline and guides/pd-disaggregation (@05b03f7, @34272a6, @9829045, read on 2026-11-25).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from rackline.catalog import OrchestratorRecord, orchestrator_record
from rackline.errors import InputError, require
from rackline.hardware import Cluster
from rackline.search.containers import (
    OPTIONS,
    STARTS_WITHIN_S,
    Document,
    Workload,
    image_of,
    kubernetes_name,
    resource_of,
    shared_memory,
    workloads,
)
from rackline.search.launch import HOST, RANK
from rackline.search.launch_commands import PORT, LaunchCommand, Start

_PROBED_EVERY_S = 10
# routers of pools as they are called on the command line
_ROUTERS = {"sglang": "python -m sglang_router.launch_router --pd-disaggregation", "vllm": "vllm-router"}
SECRET = "hf-token-secret"
_LEADER, _RANK = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"
_ADDRESS = Start(host=0)  # every pod has an address of its own
_OPERATORS = {  # options with one value each that the operator sets on every host
    "vllm": ("--nnodes", "--node-rank", "--master-addr", "--data-parallel-size-local", "--data-parallel-address"),
    "sglang": ("--nnodes", "--node-rank", "--dist-init-addr"),
    "trtllm": (),
}
_TRTLLM_KEYS = {  # options of trtllm-serve as keys of the file that Dynamo's worker reads
    "--tp_size": ("tensor_parallel_size",),
    "--pp_size": ("pipeline_parallel_size",),
    "--ep_size": ("moe_expert_parallel_size",),
    "--max_batch_size": ("max_batch_size",),
    "--max_num_tokens": ("max_num_tokens",),
    "--max_seq_len": ("max_seq_len",),
    "--kv_cache_free_gpu_memory_fraction": ("kv_cache_config", "free_gpu_memory_fraction"),
}
_CONFIG = f"{OPTIONS}/engine.yaml"
_BEHIND_PORT = 8200  # of an engine behind the side car, which takes the port of the others
_CONNECTORS = {"vllm": "nixlv2", "sglang": "sglang"}
_ENGINE_LABEL = "inference.networking.k8s.io/engine-type"
_RAW = "https://raw.githubusercontent.com/llm-d/llm-d"


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
    require(
        chips <= size,
        what="launch_as",
        given=f"{chips} chips",
        allowed=f"replicas in one NVLink domain of {size}; these take {chips}: plan one rack and repeat it",
    )
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


def _config_map(one: Workload, file: str, text: str) -> Document:
    """The file of options that the engine reads."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": one.name}, "data": {file: text}}


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
        if one.command.options_file:
            documents.append(_config_map(one, one.command.options_name, "\n".join(one.command.options_file) + "\n"))
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
    known = _ROUTERS.get(commands[0].stack, "trtllm-serve disaggregated")
    return f"requests reach the two pools by a router ({known}), which is not part of this file; Dynamo brings one"


def _labels(one: Workload) -> dict[str, str]:
    return {"app.kubernetes.io/name": one.name, "app.kubernetes.io/managed-by": "rackline"}


def _pod(one: Workload) -> Document:
    record, command = orchestrator_record("kubernetes"), one.command
    mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    volumes: list[Document] = [
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": shared_memory(one)}},
    ]
    if command.options_file:
        mounts.append({"name": "options", "mountPath": OPTIONS})
        volumes.append({"name": "options", "configMap": {"name": one.name}})
    side = [
        # the pod's own address, or a value
        {"name": name, **({"value": value} if value else {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})}
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
    require(
        command.stack != "trtllm" or command.num_hosts <= 1,
        what="launch_as",
        given="kubernetes",
        allowed="replicas on one host: TensorRT-LLM starts over several by mpirun; Dynamo does that",
    )
    words = command.in_folder(OPTIONS) if leads else list(command.other_words)
    if leads or command.stack == "sglang":
        words += command.server_words(str(_ADDRESS.port), str(_ADDRESS.side_port))
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


def engine_version(stack: str) -> str:
    """Version of an engine in Dynamo's images; empty for one that it does not have."""
    return orchestrator_record("dynamo").engines.get(stack, "")


def dynamo_manifests(commands: Sequence[LaunchCommand], places: Sequence[Cluster], name: str) -> list[Document]:
    """Documents of a deployment, in the order in which they are applied.

    Args:
        commands: as `plan_commands` gives them, in the version of Dynamo's engine.
        places: the cluster of each.
        name: of the deployment.

    Raises:
        InputError: what Dynamo cannot express.
    """
    found = workloads(orchestrator_record("dynamo"), commands, places, name)
    graph = kubernetes_name(name)
    documents, template = rack_links(found, graph)
    container = {"name": "main", "image": image_of(orchestrator_record("dynamo"), found[0])}
    pod = {"spec": {"containers": [container]}}
    components: list[Document] = [{"name": "Frontend", "type": "frontend", "replicas": 1, "podTemplate": pod}]
    for one in found:
        if one.command.stack == "trtllm":
            text = yaml.safe_dump(trtllm_config(one.command), sort_keys=False)
            documents.append(_config_map(one, "engine.yaml", text))
        components.append(_component(one, template if one.in_one_domain else ""))
    return [
        *documents,
        {
            "apiVersion": "nvidia.com/v1beta1",
            "kind": "DynamoGraphDeployment",
            "metadata": {"name": graph},
            "spec": {"backendFramework": found[0].command.stack, "env": [hub_token()], "components": components},
        },
    ]


def _component(one: Workload, template: str) -> Document:
    record, command = orchestrator_record("dynamo"), one.command
    if command.version != record.engines[command.stack]:
        allowed = f"{command.stack} {record.engines[command.stack]}, which Dynamo {record.version} has in its image"
        raise InputError(what="launch_as", given=f"{command.stack}={command.version}", allowed=allowed)
    container: Document = {
        "name": "main",
        "image": image_of(record, one),
        "command": ["python3", "-m", f"dynamo.{command.stack}"],
        "args": worker_args(command),
        "resources": chips_asked(one, record),
    }
    pod = pod_spec(container, one, record)
    if command.stack == "trtllm":
        container["volumeMounts"] = [{"name": "engine", "mountPath": _CONFIG.rpartition("/")[0], "readOnly": True}]
        pod["volumes"] = [{"name": "engine", "configMap": {"name": one.name}}]
    pod = with_rack_links(pod, template) if template else pod
    return {
        "name": one.role or "worker",
        "type": one.role or "worker",
        "replicas": command.replicas,
        **({"multinode": {"nodeCount": command.num_hosts}} if command.num_hosts > 1 else {}),
        "sharedMemorySize": shared_memory(one),
        "podTemplate": {"spec": pod},
    }


def worker_args(command: LaunchCommand) -> list[str]:
    """Arguments of Dynamo's worker for a command of its engine."""
    role = [] if command.role == "both" else ["--disaggregation-mode", command.role]
    match command.stack:
        case "sglang":
            # the role is an option of the engine itself
            return _without(command.words[command.words.index("--model-path") :], _OPERATORS["sglang"])
        case "trtllm":
            return ["--model-path", command.words[1], "--extra-engine-args", _CONFIG, *role]
        case _:
            return ["--model", command.words[2], *_without(command.words[3:], _OPERATORS["vllm"]), *role]


def _without(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Words without some options and their values."""
    return [
        word
        for index, word in enumerate(words)
        if word not in flags and not (index and words[index - 1] in flags and not word.startswith("--"))
    ]


def trtllm_config(command: LaunchCommand) -> Mapping[str, Any]:
    """Options of a TensorRT-LLM command as one table of LLM arguments."""
    found: dict[str, Any] = yaml.safe_load("\n".join(command.options_file)) or {}
    for flag, value in zip(command.words, command.words[1:], strict=False):
        if flag in _TRTLLM_KEYS:
            *outer, key = _TRTLLM_KEYS[flag]
            table = found
            for part in outer:
                table = table.setdefault(part, {})
            table[key] = yaml.safe_load(value)
    return found


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
        require(
            not one.command.is_pool or one.command.num_hosts <= 1,
            what="launch_as",
            given=f"{one.command.num_hosts} hosts a replica",
            allowed="pools whose replicas stand on one host each; llm-d's guide for more has other manifests",
        )
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
