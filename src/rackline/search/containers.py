"""A plan's replicas as containers: their names, chips, images and memory, and the Compose file of one host.

Every container of a Compose file has an address of its own, the name of its service; replicas keep the ports that
`launch_commands` gives them. Chips are reserved as devices (NVIDIA) or named by the engine's variable (AMD). Files that
an engine reads are written into the file itself; models and adapters that lie on the host are mounted from there,
others are loaded from the Hugging Face Hub into a volume that outlives the containers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rackline.catalog import OrchestratorRecord, orchestrator_record
from rackline.errors import InputError, require
from rackline.hardware import Chip, Cluster
from rackline.search.launch_commands import ROUTER_PORT, LaunchCommand, Start, hosts_of, router_command

Document = dict[str, Any]

OPTIONS = "/etc/engine"  # folder of the file that an engine reads
_SHARED_GIB_PER_CHIP, _LEAST_SHARED_GIB = 2, 8  # 15 GiB for 8 chips in LeaderWorkerSet's example; 8 is Dynamo's default
STARTS_WITHIN_S = 7200  # loading weights and compiling; Dynamo's own start-up probe waits as long
_LONGEST_NAME = 52  # a service has 63 letters, pods of a group add an index
_HUB = "/root/.cache/huggingface"
_LOOPBACK = "127.0.0.1"
_CHECKED_EVERY_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Replicas of one command.

    Args:
        name: of the workload, as Kubernetes allows it.
        role: prefill, decode, or beside: an engine on chips that the others leave free; empty for one that does both.
        command: what a replica runs.
        on: the cluster that it runs on.
    """

    name: str
    role: str
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
    require(commands, what="launch_as", given=name, allowed="a plan that has an answer")
    for command, on in zip(commands, places, strict=True):
        resource_of(record, on.chip)
        if command.lacks:
            allowed = f"a plan that {command.stack} can start; {command.lacks[0]}"
            raise InputError(what="launch_as", given=name, allowed=allowed)
    # an engine that does both after another command is the one on chips that the others leave free
    roles = [str(one.role) if one.is_pool else "beside" if number else "" for number, one in enumerate(commands)]
    return [
        Workload(name=kubernetes_name(name, role), role=role, command=command, on=on)
        for role, command, on in zip(roles, commands, places, strict=True)
    ]


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


def shared_memory(workload: Workload) -> str:
    """Size of /dev/shm, over which the ranks of a host exchange."""
    return f"{max(_SHARED_GIB_PER_CHIP * workload.chips_per_host, _LEAST_SHARED_GIB)}Gi"


def compose_file(
    commands: Sequence[LaunchCommand], places: Sequence[Cluster], name: str, *, kept_prefixes: bool = False
) -> Document:
    """A Compose file of a deployment on one host.

    Args:
        commands: as `plan_commands` gives them, with their places.
        places: the cluster of each.
        name: of the project.
        kept_prefixes: whether a request should go where its prefix is cached.

    Raises:
        InputError: replicas on several hosts, or what no image of the engine can express.
    """
    found = workloads(orchestrator_record("compose"), commands, places, name)
    hosts = hosts_of(commands)
    require(
        len(hosts) <= 1,
        what="launch_as",
        given=f"compose on {len(hosts)} hosts",
        allowed="replicas on one host, such as --chips 8; kubernetes and dynamo start them on several",
    )
    services: dict[str, Document] = {}
    configs: dict[str, Document] = {}
    names: dict[Start, str] = {}
    for one in found:
        role = one.role or "engine"
        for index, start in enumerate(one.command.starts):
            names[start] = f"{role}-{index}"
            services[names[start]] = {**_replica(one, start, names[start]), **_mounted(one.command, role)}
        configs |= _config(one.command, role)
    router = router_command(commands, kept_prefixes=kept_prefixes, address=lambda start: f"{names[start]}:{start.port}")
    if router is None:
        ((start, only),) = names.items()
        services[only]["ports"] = [f"{_LOOPBACK}:{start.port}:{start.port}"]
    else:
        services["router"] = _router(router, found[0], list(services))
        configs |= _config(router, "router")
    return {
        "name": kubernetes_name(name),
        "services": services,
        **({"configs": configs} if configs else {}),
        "volumes": {"hub": {}},
    }


def _replica(one: Workload, start: Start, name: str) -> Document:
    """The container of one replica."""
    command, vendor = one.command, one.on.chip.vendor
    words = [*command.in_folder(OPTIONS), *command.server_words(str(start.port), str(start.side_port))]
    chips = start.chips or tuple(range(one.on.host_chips))
    variables = dict((*command.env, *command.server_env(str(start.side_port), name)))
    return {
        "image": _image(one),
        **_started(words),
        "environment": {
            "HF_TOKEN": "${HF_TOKEN:-}",  # of the shell that starts the file; models that need none start without
            **{key: _plain(value) for key, value in variables.items()},
            **({command.chips_variable: ",".join(map(str, chips))} if vendor == "AMD" else {}),
        },
        "expose": [str(start.port)],
        **_devices(vendor, chips),
        # pools on one host hand over KV caches through memory that both see; ranks of one engine need only their own
        **({"ipc": "host"} if command.is_pool else {"shm_size": shared_memory(one).replace("Gi", "gb")}),
        "volumes": [f"hub:{_HUB}", *(f"{path}:{path}:ro" for path in _paths(command.words))],
        "healthcheck": {
            "test": ["CMD", "curl", "--fail", "--silent", f"http://localhost:{start.port}/health"],
            "interval": f"{_CHECKED_EVERY_S}s",
            "retries": 6,
            "start_period": f"{STARTS_WITHIN_S}s",
        },
        "restart": "unless-stopped",
    }


def _image(one: Workload) -> str:
    """Image of an engine: that of Kubernetes, where Compose has none of its own."""
    own = orchestrator_record("compose")
    return image_of(own if one.command.stack in own.images else orchestrator_record("kubernetes"), one)


def _started(words: Sequence[str]) -> Document:
    """The command of a container in place of what its image starts."""
    program = orchestrator_record("compose").programs.get(words[0], words[0])
    return {"entrypoint": [_plain(program)], "command": [_plain(word) for word in words[1:]]}


def _plain(word: str) -> str:
    """A word that Compose takes as it is: it would replace variables."""
    return word.replace("$", "$$")


def _devices(vendor: str, chips: Sequence[int]) -> Document:
    """What a container sees of the host's chips."""
    if vendor == "AMD":
        return {"devices": ["/dev/kfd:/dev/kfd", "/dev/dri:/dev/dri"], "group_add": ["video"]}
    driver = orchestrator_record("compose").resources[vendor]
    if driver == "cpu":
        return {}
    asked = {
        "driver": driver,
        "device_ids": [str(chip) for chip in chips],
        "capabilities": ["gpu"],
    }
    return {"deploy": {"resources": {"reservations": {"devices": [asked]}}}}


def _paths(words: Sequence[str]) -> list[str]:
    """Models and adapters that lie on the host, as words or values of words (`name=/path`)."""
    values = (word.rpartition("=")[2] for word in words)
    return list(dict.fromkeys(_plain(value) for value in values if value.startswith("/")))


def _config(command: LaunchCommand, name: str) -> dict[str, Document]:
    """The file of options that a command reads, by name."""
    text = "\n".join(command.options_file) + "\n"
    return {name: {"content": _plain(text)}} if command.options_file else {}


def _mounted(command: LaunchCommand, name: str) -> Document:
    """The place of that file in the container."""
    at = {"source": name, "target": f"{OPTIONS}/{command.options_name}"}
    return {"configs": [at]} if command.options_file else {}


def _router(router: LaunchCommand, first: Workload, behind: Sequence[str]) -> Document:
    """The container of the router, which starts when all replicas take requests."""
    record, words = orchestrator_record("compose"), router.in_folder(OPTIONS)
    image, pip = _image(first), ""
    name = f"{router.stack}-router"
    if words[0] == "nginx":
        image = record.images["nginx"]["any"]
    elif name in record.engines:
        image, pip = record.images["python"]["any"], f"{name}=={record.engines[name]}"
    if pip:
        words = ["/bin/sh", "-c", f'pip install --quiet {pip} && exec "$@"', "--", *words]
    return {
        "image": image,
        **_started(words),
        "ports": [f"{_LOOPBACK}:{ROUTER_PORT}:{ROUTER_PORT}"],
        **_mounted(router, "router"),
        "depends_on": {name: {"condition": "service_healthy"} for name in behind},
        "restart": "unless-stopped",
    }
