"""A tenant that does whatever it may, at random: policies, Egresses, labels and annotations of its pods, and packets
that its pods forge.
"""

import json
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from random import Random
from typing import Any, Final, TypeVar

from coil.crd.names import NodeName
from coil.eip.eip_table import TUNNEL_PORT
from coil.eip.tunnel_plan import tunnel_mac
from coil.kernel.family import IPAddress
from integration.apiserver.tenant import Tenant
from integration.eip.pod import Pod
from integration.eip.world import GROUP, World
from integration.kernel_state import KernelState
from integration.netns.forged_packet import ARP, IPV4, IPV6, advertisement, arp, ip_packet, octets, udp
from integration.netns.netns import call_inside
from integration.side_thread import SideThread

EDIT: Final = "coil-egressgatewaypolicy-edit"
EDIT_MORE: Final = "fuzz-edit"
_FOU_PORT: Final = 5555
_VNI: Final = 100
_NAMES: Final = 12
"""Of each kind of object, so many exist at most."""
_BURST: Final = 8
_USUAL: Final = 0.8
_POLICIES: Final = f"{GROUP}/egressgatewaypolicies"
_EGRESSES: Final = "/apis/coil.cybozu.com/v2/egresses"
_PAUSE: Final = 0.02
_REFUSALS: Final = range(400, 500)
_LATE: Final = "context deadline exceeded"

Document = dict[str, Any]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """What the tenant would have: the others' pods with the labels by which these are selected, and their EIPs."""

    pods: Sequence[Pod]
    labels: Mapping[str, str]
    eips: Sequence[str]

    @property
    def addresses(self) -> list[str]:
        """Of the pods."""
        return [address for pod in self.pods for address in pod.addresses.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    """The hardware addresses of a pod's link: its node's end and its own."""

    gateway: str
    own: str

    @classmethod
    def of(cls, world: World, pod: Pod) -> "_Link":
        ends = world.node(pod.node).kernel.link(pod.link), KernelState(str(pod.netns)).link("eth0")
        gateway, own = (str(end["address"]) for end in ends if end is not None)
        return cls(gateway=gateway, own=own)


def extra_role() -> Document:
    """What a namespace's editor may write beside policies, as far as it is used here."""
    rules = [
        {"apiGroups": ["coil.cybozu.com"], "resources": ["egresses"], "verbs": ["create", "update", "delete"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "update"]},
    ]
    metadata = {"name": EDIT_MORE}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules}


class HostileTenant(SideThread):
    """A context manager: it is at work as long as the block lasts, and what it has made goes at its end. `gateways` are
    the EgressGateways that it may use.

    `done` counts what it did, by what and how it ended. The same seed gives the same choices; when others see them is
    left to chance.
    """

    def __init__(
        self, world: World, tenant: Tenant, pods: Sequence[Pod], victims: Victims, *, gateways: Sequence[str], seed: int
    ) -> None:
        super().__init__("hostile-tenant")
        self.done: Counter[tuple[str, str]] = Counter()
        self._world = world
        self._tenant = tenant
        self._pods = pods
        self._victims = victims
        self._gateways = gateways
        self._random = Random(seed)
        self._links = {pod.path: _Link.of(world, pod) for pod in pods}

    def work(self) -> None:
        actions: Sequence[Callable[[], None]] = (
            *[self._write_policy] * 4,
            *[self._delete_policy] * 2,
            self._write_egress,
            self._delete_egress,
            self._change_pod,
            *[self._shoot] * 8,
        )
        while not self.stopped.wait(_PAUSE):
            self._random.choice(actions)()

    def __exit__(self, *how: object) -> None:
        super().__exit__(*how)
        for number in range(_NAMES):
            for kind in (_POLICIES, _EGRESSES):
                self._tenant.request("DELETE", f"{self._folder(kind)}/fuzz-{number}")

    # --- objects

    def _folder(self, kind: str) -> str:
        group, _, plural = kind.rpartition("/")
        return f"{group}/namespaces/{self._tenant.namespace}/{plural}"

    def _write_policy(self) -> None:
        spec = {
            "egressGatewayName": self._random.choice(self._gateways),
            "appliedTo": self._mostly({"podSelector": {"matchLabels": {"app": "own"}}}, self._choose_pods()),
            "destSubnet": self._mostly(self._some(self._foreign, most=6), self._some(self._networks, most=6)),
            "egressIP": self._mostly({}, self._choose_address()),
            "priority": self._random.choice([0, 1, -1, 2**31 - 1]),
        }
        document = {
            "apiVersion": "egressgateway.spidernet.io/v1beta1",
            "kind": "EgressGatewayPolicy",
            "spec": {field: value for field, value in spec.items() if value},
        }
        self._write("policy", self._folder(_POLICIES), document)

    def _delete_policy(self) -> None:
        self._ask("delete policy", "DELETE", f"{self._folder(_POLICIES)}/{self._name()}")

    def _write_egress(self) -> None:
        contexts: list[Document] = [
            {},
            {"privileged": True},
            {"capabilities": {"add": ["SYS_ADMIN"]}},
            {"runAsUser": 0},
        ]
        pods: list[Document] = [
            {},
            {"hostNetwork": True},
            {"serviceAccountName": "coild"},
            {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]},
        ]
        container = {
            "name": "egress",
            "env": [{"name": "COIL_EGRESS_NAME", "value": self._random.choice(["nat", "../other", ""])}],
            "securityContext": self._mostly({}, self._random.choice(contexts)),
        }
        pod = {"containers": [container], **self._mostly({}, self._random.choice(pods))}
        spec = {
            "destinations": self._some(self._networks, most=4) or ["0.0.0.0/0"],
            "replicas": self._random.randrange(3),
            "template": {"metadata": {"labels": dict(self._victims.labels)}, "spec": pod},
        }
        document = {"apiVersion": "coil.cybozu.com/v2", "kind": "Egress", "spec": spec}
        self._write("egress", self._folder(_EGRESSES), document)

    def _delete_egress(self) -> None:
        self._ask("delete egress", "DELETE", f"{self._folder(_EGRESSES)}/{self._name()}")

    def _change_pod(self) -> None:
        path = self._random.choice(self._pods).path
        status, found = self._tenant.request("GET", path)
        if status != 200:
            return
        found["metadata"]["labels"] = self._random.choice([{}, {"app": "own"}, dict(self._victims.labels)])
        key = f"egress.coil.cybozu.com/{self._random.choice(['internet', self._tenant.namespace, 'shop'])}"
        found["metadata"]["annotations"] = self._random.choice([{}, {key: f"{self._name()},{self._name()}"}])
        self._ask("change pod", "PUT", path, found)

    def _write(self, what: str, folder: str, document: Document) -> None:
        """Create it, or put it in the place of the one of that name, as it is or with what the API server wants."""
        name = self._name()
        document["metadata"] = {"name": name, "namespace": self._tenant.namespace}
        if self._ask(f"create {what}", "POST", folder, document) == 409:
            status, found = self._tenant.request("GET", f"{folder}/{name}")
            if status == 200:
                self._ask(f"update {what}", "PUT", f"{folder}/{name}", {**found, "spec": document["spec"]})

    def _ask(self, what: str, method: str, path: str, body: Document | None = None) -> int:
        status, answer = self._tenant.request(method, path, body)
        if 200 <= status < 300:
            outcome = "accepted"
        elif status in _REFUSALS:
            outcome = "refused"
        elif _LATE in str(answer.get("message")):  # a webhook that the machine had no time for
            outcome = "unanswered"
        else:
            raise AssertionError(f"{what}: {status} {json.dumps(answer)[:500]}")
        self.done[what, outcome] += 1
        return status

    def _name(self) -> str:
        return f"fuzz-{self._random.randrange(_NAMES)}"

    def _choose_pods(self) -> Document:
        address = ip_address(self._random.choice(self._victims.addresses))
        return self._random.choice(
            [
                {"podSelector": {"matchLabels": {"app": "own"}}},
                {"podSelector": {"matchLabels": dict(self._victims.labels)}},
                {"podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}},
                {"podSubnet": [f"{address}/{address.max_prefixlen}"]},
                {"podSubnet": ["0.0.0.0/0", "::/0"]},
            ]
        )

    def _choose_address(self) -> Document:
        address = self._random.choice(self._victims.eips)
        return self._random.choice(
            [{}, {}, {"useNodeIP": True}, {"ipv6" if ":" in address else "ipv4": address}, {"ipv4": "198.51.100.7"}]
        )

    @property
    def _foreign(self) -> list[str]:
        """Outside the cluster."""
        servers = [*self._world.server.addresses.values(), *self._world.server.others.values()]
        random = [f"198.51.{self._random.randrange(256)}.{4 * self._random.randrange(64)}/30" for _ in range(6)]
        return [*map(_host_network, servers), *random]

    @property
    def _networks(self) -> list[str]:
        victims = [*self._victims.addresses, *self._victims.eips]
        wide = ["0.0.0.0/0", "::/0", "10.0.0.0/8", "fd00::/8", "169.254.0.0/16"]
        return [*self._foreign, *map(_host_network, victims), *wide]

    def _mostly(self, usual: _T, other: _T) -> _T:
        """Most of what is asked for is what the API server accepts, or little else would ever happen."""
        return usual if self._random.random() < _USUAL else other

    def _some(self, values: Sequence[str], *, most: int) -> list[str]:
        return self._random.sample(values, self._random.randint(0, most))

    # --- packets

    def _shoot(self) -> None:
        pod = self._random.choice(self._pods)
        frames = [self._forge(pod) for _ in range(_BURST)]
        with call_inside(pod.netns, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)) as sender:
            sender.bind(("eth0", 0))
            for frame in frames:
                sender.send(frame.ljust(60, b"\0"))
        self.done["forge packets", "sent"] += len(frames)

    def _forge(self, pod: Pod) -> bytes:
        version = self._random.choice((4, 6))
        source, destination = self._forged_source(pod, version), self._target(version)
        kinds: Sequence[Callable[[], tuple[int, bytes]]] = (
            lambda: self._plain(source, destination),
            lambda: self._plain(source, destination),
            lambda: self._encapsulated(pod, source, destination),
            lambda: self._claim(pod, version),
        )
        ethertype, packet = self._random.choice(kinds)()
        link = self._links[pod.path]
        return octets(link.gateway) + octets(link.own) + ethertype.to_bytes(2) + packet

    def _plain(self, source: IPAddress, destination: IPAddress) -> tuple[int, bytes]:
        return _ethertype(source), udp(source, destination, sport=self._random.randrange(1, 65536))

    def _encapsulated(self, pod: Pod, source: IPAddress, destination: IPAddress) -> tuple[int, bytes]:
        """In VXLAN as the mesh has it, in Foo-over-UDP, or in IP."""
        inner = udp(source, destination)
        own = ip_address(pod.addresses[source.version])
        node = self._random.choice(self._world.nodes)
        end = ip_address(node.addresses[source.version])
        outer = self._random.choice([own, ip_address(self._random.choice(self._world.nodes).addresses[own.version])])
        speaker = tunnel_mac(NodeName(self._random.choice(self._world.nodes).name))
        frame = octets(tunnel_mac(NodeName(node.name))) + octets(speaker) + _ethertype(source).to_bytes(2) + inner
        vxlan = b"\x08\0\0\0" + (_VNI << 8).to_bytes(4) + frame
        packet = self._random.choice(
            [
                udp(outer, end, dport=TUNNEL_PORT, payload=vxlan),
                udp(outer, end, sport=_FOU_PORT, dport=_FOU_PORT, payload=inner),
                ip_packet(outer, end, 4 if source.version == 4 else 41, inner),
            ]
        )
        return _ethertype(source), packet

    def _claim(self, pod: Pod, version: int) -> tuple[int, bytes]:
        """That somebody else's address is the pod's."""
        claimed = self._forged_source(pod, version)
        mac = self._links[pod.path].own
        if claimed.version == 4:
            return ARP, arp(self._random.choice((1, 2)), mac, claimed, claimed)
        return IPV6, advertisement(claimed, claimed, mac)

    def _forged_source(self, pod: Pod, version: int) -> IPAddress:
        nodes = [node.addresses[version] for node in self._world.nodes]
        others = [*self._victims.addresses, *self._victims.eips]
        known = [address for address in others if ip_address(address).version == version]
        return ip_address(self._random.choice([pod.addresses[version], *nodes, *known, *known]))

    def _target(self, version: int) -> IPAddress:
        victims = [pod.addresses[version] for pod in self._victims.pods]
        server = self._world.server.addresses[version]
        return ip_address(self._random.choice([server, server, *victims]))


def _host_network(address: str) -> str:
    return f"{address}/{ip_address(address).max_prefixlen}"


def _ethertype(address: IPAddress) -> int:
    return IPV4 if address.version == 4 else IPV6
