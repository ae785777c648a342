"""A node of the stage: namespaces on the common link, a plain CNI, the Node object, and the real agent.

The CNI is as unfriendly as they come: it masquerades whatever leaves the pods' networks, at the priority that everybody
uses, and the reverse path filter is strict on every link.
"""

import json
import secrets
import signal
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any

from coil.nft.table_sync import read_counters
from integration.apiserver.sandbox import PodName, Sandbox
from integration.cluster.network import Namespaces, Network, run_command
from integration.cluster.process import Process
from integration.cluster.workspace import Workspace
from integration.deployment import CLUSTER_NETWORKS_FLAG, ready_probe
from integration.egress.api import Api
from integration.eip.description import Description
from integration.eip.pod import GATEWAYS, Pod, open_socket, pod_commands
from integration.kernel_state import KernelState
from integration.netns.netns import call_inside
from integration.patience import wait_until
from integration.service import Service
from integration.walk.recording import Recording

PODS4, PODS6 = IPv4Network("10.244.0.0/16"), IPv6Network("fd44::/48")
EIP_DEVICE = "egress.eip"
TUNNEL_DEVICE = "egress.vxlan"
TABLE = "coil-eip"
HEALTH_PORT = 9399
RESYNC = "--resync-interval=3s"
"""What others have changed is to be found while a test waits."""
START_SECONDS = 300.0
TERM_SECONDS = 20.0
_KNOWN = {"known4", "known6"}
"""Sets of the node's pods."""
_TRANSIENT = {"alive", "current", "decision", "valid"}
"""Sets whose elements come and go by themselves, or are other ones whenever they come."""
_SYSCTLS = """
    cd /proc/sys/net
    grep -s . ipv4/ip_forward ipv[46]/conf/{all,eth0}/* ipv6/neigh/eth0/proxy_delay netfilter/nf_conntrack_tcp*
    true
"""
_CNI = """
table inet cni {{
    chain out {{
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr {0} ip daddr != {0} masquerade
        ip6 saddr {1} ip6 daddr != {1} masquerade
    }}
}}
"""


class StageNode:
    """Number `index` from 0. Its agent is started, and waited for, by others."""

    def __init__(
        self,
        workspace: Workspace,
        network: Network,
        description: Description,
        api: Api,
        *,
        name: str,
        index: int,
        agent_flags: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._agent_flags = agent_flags
        self.index = index
        self.ipv4: IPv4Address
        self.ipv6: IPv6Address
        self.ipv4, self.ipv6 = network.node_addresses(index)
        self.pod_network4 = IPv4Network((int(PODS4[0]) + (index << 8), 24))
        self.pod_network6 = IPv6Network((int(PODS6[0]) + (index << 64), 64))
        self._workspace = workspace
        self._network = network
        self._description = description
        self._api = api
        self._pods = 0
        self.namespaces = Namespaces.hold(workspace, name)
        network.attach(self.namespaces, port=name, addresses=network.node_addresses(index))
        self._set_up()
        self.found: dict[str, list[str]] = {}
        """The footprint before the first agent."""
        self.agent: Service

    @property
    def addresses(self) -> dict[int, str]:
        """Its own, by IP version, in the order of the cluster's families."""
        return self._network.families.pick_texts(self.ipv4, self.ipv6)

    @property
    def pod_networks(self) -> dict[int, str]:
        """Its pods', likewise."""
        networks = {4: self.pod_network4, 6: self.pod_network6}
        return {version: str(networks[version]) for version in self.addresses}

    @property
    def mac(self) -> str:
        """Of its link to the others."""
        return str(self.kernel.ip("link", "show", "dev", "eth0")[0]["address"])

    @property
    def netns(self) -> Path:
        return self.namespaces.net

    @property
    def kernel(self) -> KernelState:
        """What the kernel holds in its namespace."""
        return KernelState(str(self.namespaces.net))

    def be_known(self, others: Sequence["StageNode"]) -> None:
        """Routes to the pods of other nodes, by their own addresses."""
        for other in others:
            if other is not self:
                for version, address in other.addresses.items():
                    self._batch(f"route add {other.pod_networks[version]} via {address}")

    def register(self) -> None:
        """The Node object, as a kubelet makes it."""
        networks = list(self.pod_networks.values())
        metadata = {"name": self.name, "labels": {"kubernetes.io/hostname": self.name}}
        spec = {"podCIDR": networks[0], "podCIDRs": networks}
        self._api.create("/api/v1/nodes", {"metadata": metadata, "spec": spec})
        conditions = [{"type": "Ready", "status": "True", "reason": "Stage", "message": ""}]
        self._tell({"conditions": conditions, **_addresses(self.addresses.values())})

    def count(self, counter: str, *, table: str = TABLE) -> int:
        """The packets that a counter of a packet filter has seen."""
        return call_inside(self.netns, partial(read_counters, table))[counter].packets

    def await_count(self, counter: str, least: int) -> None:
        """Until the agent's counter has seen so many packets. Those that were sent may still be on their way."""
        wait_until(lambda: self.count(counter) >= least, what=f"{least} packets are counted as {counter}")

    @contextmanager
    def more_addresses(self, addresses: Mapping[int, str]) -> Iterator[None]:
        """Its own, too, as long as the block lasts: on its link, and in the Node object."""
        lengths = {4: self._network.ipv4.prefixlen, 6: self._network.ipv6.prefixlen}
        entries = [f"{address}/{lengths[family]} dev eth0" for family, address in addresses.items()]
        # It comes with them: without a question whether another has them.
        self._batch(*(f"address add {entry}{' nodad' if ':' in entry else ''}" for entry in entries))
        self._tell(_addresses([*self.addresses.values(), *addresses.values()]))
        try:
            yield
        finally:
            self._batch(*(f"address delete {entry}" for entry in entries))
            self._tell(_addresses(self.addresses.values()))

    def _tell(self, status: dict[str, Any]) -> None:
        self._api.patch(f"/api/v1/nodes/{self.name}/status", {"status": status})

    def unregister(self) -> None:
        """Delete the Node object."""
        self._api.delete(f"/api/v1/nodes/{self.name}")

    # --- its agent

    def start_agent(self, *flags: str, recording: Recording | None = None) -> None:
        """Run the agent in the node's namespaces, its calls noted by `recording`, without waiting for it."""
        self.found = self.found or self.footprint()
        command = [*self._command, *flags]
        if recording is not None:
            command = recording.traced(command)
        env = {"COIL_NODE_NAME": self.name}
        spawn = partial(self._workspace.spawn, f"agent-{self.name}", [*self.namespaces.entrance, *command], env=env)
        ready = partial(call_inside, self.namespaces.net, ready_probe(HEALTH_PORT))
        self.agent = Service(spawn, ready=ready, patience=START_SECONDS)

    @property
    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "coil_egress_agent.eip"),
            f"--kubeconfig={self._description.agent_kubeconfig}",
            f"--node-name={self.name}",
            f"--cluster-cidr={','.join(map(str, self._network.families.service_ranges))}",
            CLUSTER_NETWORKS_FLAG,
            RESYNC,
            *self._agent_flags,
        ]

    @contextmanager
    def restarted_agent(self, *flags: str, recording: Recording | None = None) -> Iterator[Process]:
        """Its agent restarted with these flags, ready, as long as the block lasts."""
        self.stop_agent()
        self.start_agent(*flags, recording=recording)
        try:
            self.agent.wait_ready()
            yield self.agent.process
        finally:
            self.stop_agent()
            self.start_agent()

    def lapses(self) -> int:
        """How often its agents have lost the lease, as far as they could say so."""
        return sum(line["event"] == "lease not held any more" for line in self.agent.process.entries())

    def stop_agent(self) -> None:
        """SIGTERM; returns at its end."""
        self.agent.process.send_signal(signal.SIGTERM)
        self.agent.process.wait(TERM_SECONDS)

    def die(self) -> None:
        """The machine loses its power: its link goes down, its programs are killed, nobody says goodbye."""
        self._network.fabric.run("ip", "link", "set", self.name, "down")
        self.agent.kill()

    def revive(self) -> None:
        """Its link comes up and its agent starts; that is not waited for. Idempotent."""
        self._network.fabric.run("ip", "link", "set", self.name, "up")
        if self.agent.process.poll() is not None:
            self.agent.start()

    def cut_off(self) -> None:
        """From the API server and from nothing else: ports that are isolated reach only ports that are not."""
        self._isolate("on")

    def rejoin(self) -> None:
        """Undo `cut_off`. Idempotent."""
        self._isolate("off")

    def socket(self, kind: socket.SocketKind, address: str) -> socket.socket:
        """A socket of the node's own, of that address's family."""
        return open_socket(self.netns, kind, address)

    # --- its pods

    def make_pod(
        self, namespace: str, labels: Mapping[str, str], *, reported: bool = True, host_network: bool = False
    ) -> Pod:
        """Wire a pod and write its object: running, or (not `reported`) as it is before kubelet has told of it. With
        `host_network`, the object says that it has the node's network.
        """
        self._pods += 1
        number = 1 + self._pods
        addresses = self._network.families.pick_texts(self.pod_network4[number], self.pod_network6[number])
        name = f"pod-{secrets.token_hex(3)}"
        sandbox = Sandbox(PodName(namespace, name), container_id=name, cluster=self._workspace.id)
        link = f"pod{self._pods}"
        host_end = {
            4: f"address add {GATEWAYS[4]}/32 dev {link}",
            6: f"address add {GATEWAYS[6]}/64 dev {link} nodad",
        }
        self._batch(
            f"link add {link} type veth peer name eth0 netns {sandbox.netns}",
            *(host_end[version] for version in addresses),
            f"link set {link} up",
            *(f"route add {address} dev {link}" for address in addresses.values()),
        )
        _batch(sandbox.netns, pod_commands(addresses))
        pod = Pod(sandbox=sandbox, node=self.name, addresses=addresses, link=link)
        self._write(pod, labels, host_network=host_network)
        if reported:
            self.report(pod)
        return pod

    def delete_pod(self, pod: Pod) -> None:
        """Its object and its namespace. Idempotent."""
        self._api.delete(pod.path, grace=0)
        pod.sandbox.destroy()

    def _write(self, pod: Pod, labels: Mapping[str, str], *, host_network: bool) -> None:
        folder, _, name = pod.path.rpartition("/")
        spec = {
            "nodeName": self.name,
            "containers": [{"name": "main", "image": "none"}],
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "hostNetwork": host_network,
        }
        self._api.create(folder, {"metadata": {"name": name, "labels": dict(labels)}, "spec": spec})

    def report(self, pod: Pod) -> None:
        """As kubelet does: the pod runs, and has its addresses."""
        ips = [{"ip": address} for address in pod.addresses.values()]
        host = next(iter(self.addresses.values()))
        status = {"phase": "Running", "hostIP": host, "podIP": ips[0]["ip"], "podIPs": ips}
        self._api.patch(f"{pod.path}/status", {"status": status})

    # --- what its kernel holds

    def eips(self) -> set[str]:
        """Addresses on the EIP device."""
        entries = self.kernel.ip("address", "show")
        found = [entry for entry in entries if entry["ifname"] == EIP_DEVICE]
        return {info["local"] for entry in found for info in entry["addr_info"] if info["scope"] == "global"}

    def elements(self, family: str = "inet") -> dict[str, list[str]]:
        """The elements of every set and map of the agent's table, as text; empty ones left out."""
        found = {}
        for entry in self._table(family):
            body = entry.get("set") or entry.get("map")
            if body and body["name"] not in _TRANSIENT and (elements := body.get("elem")):
                found[body["name"]] = sorted(json.dumps(each, sort_keys=True) for each in elements)
        return found

    def holds_back(self) -> bool:
        """Whether unknown sources do not pass."""
        sets = [entry["set"] for entry in self._table("inet") if "set" in entry]
        return not next(entry for entry in sets if entry["name"] == "current").get("elem")

    def rule_count(self) -> int:
        """Rules in the agent's tables."""
        return sum("rule" in entry for family in ("inet", "arp") for entry in self._table(family))

    def state(self) -> dict[str, object]:
        """All that policies and gateways could leave behind, to be compared with a state before them.

        The node's pods are known to the agent whether a policy selects them or not.
        """
        return {
            "inet": {name: elements for name, elements in self.elements().items() if name not in _KNOWN},
            "arp": self.elements("arp"),
            "rules": self.rule_count(),
            "eips": sorted(self.eips()),
            "ip rule": [self.kernel.ip(family, "rule", "show") for family in ("-4", "-6")],
            "links": sorted(link["ifname"] for link in self.kernel.ip("link", "show") if not _is_pods(link["ifname"])),
        }

    def footprint(self) -> dict[str, list[str]]:
        """Whatever of a node an agent may change, but for what is of pods."""
        routes = [route for family in ("-4", "-6") for route in self.kernel.ip(family, "route", "show", "table", "all")]
        neighbours = [line for what in ("proxy", "nud permanent") for line in self._neighbours(what)]
        return {
            "links": sorted(link["ifname"] for link in self.kernel.ip("link", "show") if not _is_pods(link["ifname"])),
            "rules": self.kernel.run("sh", "-c", "ip rule show; ip -6 rule show").splitlines(),
            "routes": sorted(json.dumps(route, sort_keys=True) for route in routes if not _is_others(route)),
            "neighbours": neighbours,
            "tables": self.kernel.run("nft", "list", "tables").splitlines(),
            "sysctls": self.kernel.run("bash", "-c", _SYSCTLS).splitlines(),
        }

    def clean_up(self) -> None:
        """Run the agent's own clean-up to its end."""
        run_command([*self.namespaces.entrance, *self._command, "--cleanup"])

    def _neighbours(self, what: str) -> list[str]:
        return self.kernel.run("sh", "-c", f"ip neighbour show {what}; ip -6 neighbour show {what}").splitlines()

    def _table(self, family: str) -> list[dict[str, Any]]:
        return self.kernel.nft("list", "table", family, TABLE)

    def _set_up(self) -> None:
        strict = [f"net.ipv4.conf.{link}.rp_filter=1" for link in ("all", "default", "eth0")]
        self.namespaces.set_sysctls(strict)
        self.kernel.run("nft", _CNI.format(PODS4, PODS6))
        api_server = ip_address(self._description.address)
        if api_server.version == 6:
            # By the machine that the nodes are on; IPv4 networks of the tests are routed there anyway.
            self._batch(f"route add {ip_network(f'{api_server}/64', strict=False)} via {self._network.host6}")

    def _batch(self, *commands: str) -> None:
        _batch(str(self.namespaces.net), commands)

    def _isolate(self, value: str) -> None:
        self._network.fabric.run("bridge", "link", "set", "dev", self.name, "isolated", value)


def _addresses(addresses: Iterable[str]) -> dict[str, Any]:
    return {"addresses": [{"type": "InternalIP", "address": address} for address in addresses]}


def _batch(netns: str, commands: Sequence[str]) -> None:
    text = "\n".join(commands)
    KernelState(netns).run("sh", "-c", f"ip -batch - <<END\n{text}\nEND")


def _is_others(route: dict[str, Any]) -> bool:
    """A pod's, or what the kernel adds for link-local addresses in its own time."""
    return _is_pods(route.get("dev", "")) or str(route["dst"]).startswith("fe80:")


def _is_pods(link: str) -> bool:
    return link.startswith("pod")
