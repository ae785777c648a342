"""Two nodes with a pod each, an Egress with a router, and a host outside, as objects and dumps tell of them."""

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import msgspec

from coil.crd.builtin import NODES, PODS, SERVICES
from coil.crd.egress import EGRESSES
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES
from coil.crd.egress_tunnel import EGRESS_TUNNELS
from coil.crd.endpoint_slice import ENDPOINT_SLICES
from coil.page.node_dump import AddressDump, LinkDump, NamespaceDump, NextHopDump, RouteDump, RuleDump
from kubectl_coil.trace.cluster_view import ClusterView
from kubectl_coil.trace.document import TraceDocument
from kubectl_coil.trace.walk import Walk
from tests.coil.kube.memory_api import MemoryApi
from tests.kubectl_coil.memory_nodes import MemoryNodes, node_dump
from tests.kubectl_coil.memory_reader import MemoryReader

OUTSIDE = "203.0.113.9"
CLIENT, FAR, ROUTER, EGRESS = "10.0.0.5", "10.0.1.5", "10.0.1.9", "10.96.0.7"
N0, N1 = "192.0.2.10", "192.0.2.11"
EIP, MARK, SENDER, HERE = "198.51.100.7", 0x26000100, 0x26000300, 0x26000000
Document = dict[str, Any]


def link(index: int, name: str, *, kind: str = "veth", peer: int | None = None, **more: Any) -> LinkDump:
    fields: Document = {"mac": "", "mtu": 1500, "flags": ("UP",), "state": "UP", "peer_namespace": None}
    fields |= {"master": None, "alias": "", "info": {}}
    return LinkDump(index=index, name=name, kind=kind, link=peer, **{**fields, **more})


def rule(priority: int, table: int, **more: Any) -> RuleDump:
    fields: Document = {"action": "lookup", "source": "", "destination": "", "mark": None, "mask": None}
    fields |= {"input_link": "", "output_link": "", "goto": None, "protocol": 30, "inverted": False, "others": ()}
    return RuleDump(family=2, priority=priority, table=table, **{**fields, **more})


def route(destination: str, table: int, hop: int | None, *, gateway: str = "", kind: str = "unicast") -> RouteDump:
    hops = () if hop is None else (NextHopDump(link=hop, gateway=gateway),)
    fields: Document = {"protocol": 30, "scope": 0, "metric": 0, "source": "", "mtu": None}
    return RouteDump(family=2, table=table, destination=destination, type=kind, hops=hops, **fields)


def local(address: str) -> RouteDump:
    return route(f"{address}/32", 255, 1, kind="local")


COMMON = (rule(0, 255), rule(32766, 254))


def pod_namespace(address: str, *, peer: int, tunnel: LinkDump | None = None, **parts: Any) -> NamespaceDump:
    """eth0 is link 2; the peer is what it is called on the node."""
    links = (link(1, "lo", kind=""), link(2, "eth0", peer=peer), *((tunnel,) if tunnel else ()))
    routes = (local(address), route("0.0.0.0/0", 254, 2, gateway="169.254.1.1"), *parts.get("routes", ()))
    addresses = (AddressDump(link=2, address=f"{address}/32", scope="global", permanent=True),)
    rules = (COMMON[0], *parts.get("rules", ()), COMMON[1])
    return NamespaceDump(path=f"/run/netns/{address}", links=links, addresses=addresses, rules=rules, routes=routes)


def tunnel_to(remote: str) -> LinkDump:
    return link(9, "fou4_peer", kind="ipip", info={"IFLA_IPIP_REMOTE": remote})


def pod(name: str, node: str, address: str, **annotations: str) -> Document:
    return {
        "metadata": {"name": name, "namespace": "shop", "annotations": annotations},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "podIPs": [{"ip": address}]},
    }


@dataclass(slots=True)
class Scene:
    """Tests change it, then `trace` from the pod `client`."""

    pods: dict[str, Document] = field(default_factory=dict)
    namespaces: dict[str, list[NamespaceDump]] = field(default_factory=dict)
    hosts: dict[str, NamespaceDump] = field(default_factory=dict)
    tables: dict[str, list[Document]] = field(default_factory=lambda: {"n0": [], "n1": []})
    objects: list[tuple[Any, Document]] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)

    @classmethod
    def plain(cls) -> "Scene":
        """Pods that have no egress of their own."""
        scene = cls()
        scene.pods = {"client": pod("client", "n0", CLIENT), "far": pod("far", "n1", FAR)}
        scene.namespaces = {"n0": [pod_namespace(CLIENT, peer=20)], "n1": [pod_namespace(FAR, peer=20)]}
        scene.hosts = {
            node: NamespaceDump(
                path="",
                links=(
                    *(link(1, "lo", kind=""), link(2, "eth0")),
                    *(link(20, "vethpod", alias="COIL:default:c:eth0"), link(21, "vethrouter", alias="COIL:d:r:eth0")),
                ),
                rules=(COMMON[0], rule(2000, 116), COMMON[1]),
                routes=(
                    *(local(own), route(f"{address}/32", 116, 20), route("0.0.0.0/0", 254, 2, gateway="192.0.2.1")),
                    *(route(f"{network}/24", 254, 2, gateway=other), route("192.0.2.0/24", 254, 2)),
                ),
            )
            for node, own, other, address, network in (
                ("n0", N0, N1, CLIENT, "10.0.1.0"),
                ("n1", N1, N0, FAR, "10.0.0.0"),
            )
        }
        for name, address in (("n0", N0), ("n1", N1)):
            status = {"addresses": [{"type": "InternalIP", "address": address}]}
            scene.objects.append((NODES, {"metadata": {"name": name}, "status": status}))
        return scene

    @classmethod
    def with_egress(cls) -> "Scene":
        """The client names the Egress internet/nat, whose router is on n1."""
        scene = cls.plain()
        annotations = {"egress.coil.cybozu.com/internet": "nat"}
        scene.pods["client"] = pod("client", "n0", CLIENT, **annotations)
        scene.pods["router"] = pod("router", "n1", ROUTER)
        rules = (rule(2000, 254, destination="10.0.0.0/8"), rule(2100, 118))
        to_egress = (route("0.0.0.0/0", 118, 9),)
        scene.namespaces["n0"] = [
            pod_namespace(CLIENT, peer=20, tunnel=tunnel_to(EGRESS), rules=rules, routes=to_egress)
        ]
        back = {"rules": (rule(2000, 118, input_link="eth0"),), "routes": (route(f"{CLIENT}/32", 118, 9),)}
        scene.namespaces["n1"].append(pod_namespace(ROUTER, peer=21, tunnel=tunnel_to(CLIENT), **back))
        scene.add_service("nat", EGRESS, [ROUTER], port=5555, protocol="UDP", namespace="internet")
        scene.objects.append((EGRESSES, {"metadata": {"name": "nat", "namespace": "internet"}}))
        return scene

    def add_service(
        self,
        name: str,
        address: str,
        endpoints: list[str],
        *,
        port: int,
        protocol: str = "TCP",
        namespace: str = "shop",
        node_port: int = 0,
    ) -> None:
        metadata = {"name": name, "namespace": namespace}
        spec = {
            "clusterIP": address,
            "clusterIPs": [address],
            "ports": [{"name": "p", "port": port, "protocol": protocol, "nodePort": node_port}],
        }
        self.objects.append((SERVICES, {"metadata": metadata, "spec": spec}))
        slice_ = {
            "metadata": {**metadata, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"name": "p", "port": port + 1}],
            "endpoints": [{"addresses": [each]} for each in endpoints],
        }
        self.objects.append((ENDPOINT_SLICES, slice_))

    def add_policy(self, eip: str, *, node: str, mark: int) -> None:
        self.objects.append(
            (
                EGRESS_GATEWAY_POLICIES,
                {"metadata": {"name": "payments", "namespace": "shop"}, "status": {"eip": {"ipv4": eip}, "node": node}},
            )
        )
        self.add_tunnel(node, mark)

    def add_tunnel(self, node: str, mark: int) -> None:
        self.objects.append((EGRESS_TUNNELS, {"metadata": {"name": node}, "status": {"mark": hex(mark)}}))

    async def trace(self, destination: str = OUTSIDE, port: int | None = 80, *, protocol: str = "tcp") -> TraceDocument:
        api = MemoryApi()
        for resource, document in [*self.objects, *((PODS, each) for each in self.pods.values())]:
            api.put(resource, document)
        nodes = MemoryNodes()
        for node, host in self.hosts.items():
            if node not in self.silent:
                whole = node_dump(namespaces=tuple(self.namespaces[node]), tables=self.tables[node])
                nodes.dumps[node] = msgspec.structs.replace(whole, node=host)
        view = ClusterView(MemoryReader(api), nodes)
        whose = await view.pod("shop", "client")
        return await Walk(view, whose, ip_address(destination), protocol, port).trace()


def nft_map(name: str, *elements: Any, kind: str = "map") -> dict[str, Any]:
    return {kind: {"family": "inet", "table": "coil-eip", "name": name, "elem": list(elements)}}


def eip_tables(way: int, *, sender: int | None = None, alive: bool = True) -> list[dict[str, Any]]:
    """The client has a class, whose second policy is for everything beyond the cluster: on its own node, or where what
    it sends comes from the node with the mark `sender`.
    """
    return [
        nft_map("class4", *([[CLIENT, "9:2"]] if sender is None else [])),
        nft_map("remote_class4", *([[{"concat": [sender, CLIENT]}, "9:2"]] if sender is not None else [])),
        nft_map("subnet_class4"),
        nft_map("next", ["9:2", "3:1"]),
        nft_map("everywhere", ["3:1", "3:1"]),
        nft_map("cluster4", {"prefix": {"addr": "10.0.0.0", "len": 8}}, kind="set"),
        nft_map("way4", ["3:1", way]),
        nft_map("eip4", ["3:1", EIP]),
        nft_map("alive", *([{"elem": {"val": "ipv4", "timeout": 5}}] if alive else []), kind="set"),
        nft_map("current", "ipv4", kind="set"),
    ]


def with_eip(way: int, there: int = HERE, *, alive: bool = True) -> Scene:
    """n1 is the gateway node; its tunnel is link 30 of n0."""
    scene = Scene.plain()
    scene.add_policy(EIP, node="n1", mark=MARK)
    scene.add_tunnel("n0", SENDER)
    scene.tables = {"n0": eip_tables(way), "n1": eip_tables(there, sender=SENDER, alive=alive)}
    host = scene.hosts["n0"]
    mesh = msgspec.structs.replace(host.links[0], index=30, name="egress.vxlan", kind="vxlan")
    scene.hosts["n0"] = msgspec.structs.replace(
        host,
        links=(*host.links, mesh),
        rules=(host.rules[0], rule(1700, 500, mark=MARK, mask=0xFFFFFFFF), *host.rules[1:]),
        routes=(*host.routes, route("0.0.0.0/0", 500, 30, gateway="172.31.0.2")),
    )
    return scene
