"""Where replicas run: hosts, the chips of a host that each takes, and ports that replicas on one host do not share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rackline.hardware import Cluster

PORT = 8000
ROUTER_PORT = 30000  # where the routers of SGLang and vLLM listen by default
# Engines open ports beside that of their server: SGLang with attention data parallelism at 233 after it and on for its
# own messages (sglang, srt/server_args.py, ZMQ_TCP_PORT_DELTA), vLLM's NixlConnector at VLLM_NIXL_SIDE_CHANNEL_PORT and
# on, one or two a rank. Servers a hundred apart, and the side channel 80 after its server, keep those of one host's
# replicas apart.
_PORTS_APART, _SIDE = 100, 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where one replica starts.

    Args:
        host: its first host, counted from 0 [index].
        num_hosts: hosts that it spans [count].
        chips: those of each host that it takes, by number; empty for all of them.
        port: of its server on the first host.
    """

    json_keys: ClassVar = ("host", "num_hosts", "chips", "port")

    host: int
    num_hosts: int = 1
    chips: tuple[int, ...] = ()
    port: int = PORT

    @property
    def side_port(self) -> int:
        """Port on which prefill and decode replicas agree on the transfer of a KV cache."""
        return self.port + _SIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Replicas of one kind that need chips.

    Args:
        replicas: [count].
        chips: of each replica [count].
        num_hosts: of each replica [count].
        on: the cluster.
    """

    replicas: int
    chips: int
    num_hosts: int
    on: Cluster


def starts_of(wanted: Sequence[Wanted]) -> list[tuple[Start, ...]]:
    """Where each replica starts, by kind: the widest first, each on the first hosts with enough free chips.

    Hosts are counted over all clusters, in the order in which they are first needed.
    """
    of_host: list[str] = []  # cluster of each host
    used: list[int] = []  # chips of each host that are taken
    servers: list[int] = []  # replicas of each host
    found: list[list[Start]] = [[] for _ in wanted]
    for index in sorted(range(len(wanted)), key=lambda at: -wanted[at].chips):
        kind = wanted[index]
        size, each = kind.on.host_chips, -(-kind.chips // kind.num_hosts)
        for _ in range(kind.replicas):
            free = (at for at, name in enumerate(of_host) if name == kind.on.name and used[at] + each <= size)
            first = next(free, len(of_host)) if kind.num_hosts == 1 else len(of_host)
            if first == len(of_host):
                of_host += [kind.on.name] * kind.num_hosts
                used += [0] * kind.num_hosts
                servers += [0] * kind.num_hosts
            chips = () if each == size else tuple(range(used[first], used[first] + each))
            port = PORT + _PORTS_APART * servers[first]
            found[index].append(Start(host=first, num_hosts=kind.num_hosts, chips=chips, port=port))
            for host in range(first, first + kind.num_hosts):
                used[host] += each
                servers[host] += 1
    return [tuple(kind) for kind in found]
