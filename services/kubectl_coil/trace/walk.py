"""The way of a packet, step by step, until it arrives, leaves the cluster, or stops.

    pod ─► tunnel ─► Service of an Egress ─► router ─┐
      └─────────────────────────────────────────────┴► node ─► gateway node ─► outside
                                                         ├─► node ─► pod
                                                         └─► outside

Routes are looked up in dumps (`kubectl_coil.trace.routing`), policies of floating addresses in the sets of the node
(`kubectl_coil.trace.eip_way`), Services and Egresses in their objects. What is not followed, such as translations by
others, is told as a doubt.
"""

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from coil.crd.builtin import Pod, Service, ServicePort
from coil.crd.names import ANNOTATION_EGRESS_PREFIX
from coil.kernel.family import Family, IPAddress
from coil.page.node_dump import LinkDump, NamespaceDump, NodeDump
from coil.podnet.host_port import SETS as HOST_PORT_SETS
from kubectl_coil.ipam.addresses import addresses_of
from kubectl_coil.node_reader import NodeUnreadableError
from kubectl_coil.trace.cluster_view import ClusterView
from kubectl_coil.trace.document import HopDocument, TraceDocument, Verdict
from kubectl_coil.trace.eip_way import Way, WayKind, find_way
from kubectl_coil.trace.nft_set import NftSets
from kubectl_coil.trace.routing import Decision, Packet, RouteResult, find_route

LONGEST: Final = 16
"""Steps after which a packet goes in circles."""
_TUNNELS: Final = frozenset({"ipip", "ip6tnl", "sit"})


class StoppedError(Exception):
    """The packet goes no further; says why."""


@dataclass(slots=True)
class Walk:
    """One packet. `source` is None for a pod that has no address of the family."""

    view: ClusterView
    pod: Pod
    destination: IPAddress
    protocol: str
    port: int | None
    hops: list[HopDocument] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    replies: str = ""

    async def trace(self) -> TraceDocument:
        """Walk it to its end. Raises ApiError."""
        seen: IPAddress | None = None
        verdict, reason = Verdict.DELIVERED, ""
        asked, port = self.destination, self.port
        try:
            seen = await self._from_pod()
        except StoppedError as error:
            verdict, reason = Verdict.STOPPED, str(error)
        except NodeUnreadableError as error:
            verdict, reason = Verdict.UNKNOWN, str(error)
        source = self._source_of(self.pod)
        return TraceDocument(
            pod=_name(self.pod),
            source="" if source is None else str(source),
            destination=str(asked),
            protocol=self.protocol,
            port=port,
            hops=tuple(self.hops),
            verdict=verdict,
            reason=reason,
            source_seen="" if seen is None else str(seen),
            replies=self.replies if seen is not None else "",
            doubts=tuple(dict.fromkeys(self.doubts)),
        )

    # --- the pod

    async def _from_pod(self) -> IPAddress:
        """The source address that the other side sees. Raises StoppedError."""
        pod = self.pod
        if pod.spec.host_network:
            own = await self.view.address_of(pod.spec.node_name, version=self.destination.version)
            if own is None:
                raise StoppedError(f"the node {pod.spec.node_name} has no IPv{self.destination.version} address")
            self._hop(f"pod {_name(pod)}", "sends as its node", "hostNetwork")
            return await self._on_node(pod.spec.node_name, own, input_link="lo")
        if (source := self._source_of(pod)) is None:
            raise StoppedError(f"the pod {_name(pod)} has no IPv{self.destination.version} address")
        namespace = await self.view.namespace_of(pod)
        node = pod.spec.node_name
        if namespace is None and (await self.view.dump(node)).pods:
            raise StoppedError(f"no network namespace on {node} has the address {source}")
        if namespace is None:
            self.doubts.append(f"the routes of the pod itself, which nothing on {node} can read")
            return await self._on_node(node, source, input_link=await self._link_to(source, node))
        at = f"pod {_name(pod)}"
        decision = self._route(namespace, Packet(source=source, destination=self.destination), at=at)
        if decision.result is RouteResult.LOCAL:
            self._hop(at, "is the destination itself", _by(decision))
            return source
        if decision.result is not RouteResult.FORWARD:
            raise StoppedError(await self._explain_block(pod, decision))
        link = _link(namespace, decision)
        if link is not None and link.kind in _TUNNELS:
            return await self._through_egress(pod, source, link, decision)
        self._hop(at, f"sends to its node by {', '.join(decision.links)}", _by(decision))
        return await self._on_node(node, source, input_link=await self._link_to(source, node))

    async def _explain_block(self, pod: Pod, decision: Decision) -> str:
        """Why the pod's own namespace does not let it out."""
        for namespace, name in _egresses_of(pod):
            egress = await self.view.egress(namespace, name)
            if egress is None:
                return f"held back: there is no Egress {namespace}/{name}"
            service = await self.view.service_named(namespace, name)
            if service is None or not await self._ready(service):
                return f"held back: Egress {namespace}/{name} has no ready router"
        return f"the pod's namespace has no way to {self.destination} ({_by(decision)})"

    async def _link_to(self, address: IPAddress, node: str) -> str:
        """The node's end of the link to a pod of its own; "" where it has no route to it."""
        dump = await self.view.dump(node)
        links = find_route(dump.node, Packet(source=None, destination=address)).links
        return links[0] if links else ""

    # --- egress NAT

    async def _through_egress(self, pod: Pod, source: IPAddress, link: LinkDump, decision: Decision) -> IPAddress:
        remote = _remote(link)
        service = None if remote is None else await self.view.service_at(remote)
        if service is None:
            raise StoppedError(f"the tunnel {link.name} leads to {remote}, which is no Service")
        egress = f"Egress {service.metadata.namespace}/{service.metadata.name}"
        self._hop(f"pod {_name(pod)}", f"wraps it for the {egress} by {link.name}", _by(decision))
        ready = await self._ready(service, version=source.version)
        if not ready:
            raise StoppedError(f"held back: {egress} has no ready router")
        router = await self.view.pod_at(ip_address(ready[0]))
        if router is None:
            raise StoppedError(f"no pod has the address {ready[0]} of the {egress}")
        at = f"router {_name(router)}"
        self._hop(f"node {pod.spec.node_name}", f"picks one of {len(ready)} routers: {_name(router)}", egress)
        namespace = await self.view.namespace_of(router)
        translated = self._source_of(router)
        if namespace is None or translated is None:
            raise StoppedError(f"no network namespace on {router.spec.node_name} has the address {ready[0]}")
        back = find_route(namespace, Packet(source=self.destination, destination=source, input_link="eth0"))
        tunnel = _link(namespace, back)
        if back.result is not RouteResult.FORWARD or tunnel is None or _remote(tunnel) != source:
            raise StoppedError(f"the {at} has no tunnel back to {source}: its agent does not know the pod")
        self.replies = f"to {at}, which sends them to the pod by {tunnel.name}"
        packet = Packet(source=source, destination=self.destination, input_link=tunnel.name)
        onward = self._route(namespace, packet, at=at)
        if onward.result is not RouteResult.FORWARD:
            raise StoppedError(f"the {at} has no route to {self.destination} ({_by(onward)})")
        self._hop(at, f"unwraps it, and sends it as {translated} by {', '.join(onward.links)}", _by(onward))
        node = router.spec.node_name
        return await self._on_node(node, translated, input_link=await self._link_to(translated, node))

    async def _ready(self, service: Service, *, version: int = 0) -> list[str]:
        """The ready addresses of the Service, of that family or of any."""
        found: set[str] = set()
        for each in [version] if version else [4, 6]:
            found.update(*(addresses for _, addresses in await self.view.endpoints(service, version=each)))
        return sorted(found)

    # --- nodes

    async def _on_node(self, node: str, source: IPAddress, *, input_link: str) -> IPAddress:
        """What becomes of it on a node, and on those after it."""
        for _ in range(LONGEST):
            dump = await self.view.dump(node)
            at = f"node {node}"
            sets = NftSets.of(dump.tables or ())
            by_node_port = await self._translate_destination(sets, node)
            way = find_way(sets, source, self.destination) if input_link != "lo" else Way(kind=WayKind.NONE)
            if way.kind is WayKind.HERE:
                return await self._leave_here(node, source, way)
            self._check_way(way, node)
            if by_node_port and way.kind is WayKind.NONE:
                source = await self.view.address_of(node, version=source.version) or source
                self._hop(at, f"has it come from itself, {source}", "kube-proxy, for node ports")
            packet = Packet(source=source, destination=self.destination, mark=way.mark, input_link=input_link)
            decision = self._route(dump.node, packet, at=at)
            if decision.result is RouteResult.LOCAL:
                self._hop(at, "is the destination", _by(decision))
                return source
            if decision.result is not RouteResult.FORWARD:
                raise StoppedError(f"{at} has no route to {self.destination}: {decision.result} ({_by(decision)})")
            if way.kind is WayKind.TUNNEL:
                return await self._through_tunnel(node, source, way, decision)
            self._note_translators(dump, node)
            if await self._is_here(node, decision):
                return await self._arrive(at, source, decision)
            following = await self._next_node(decision)
            if following is None:
                self._hop(at, f"sends it out by {', '.join(decision.links)}", _by(decision))
                await self._note_pod_elsewhere()
                return source
            self._hop(at, f"sends it to the node {following} by {', '.join(decision.links)}", _by(decision))
            node, input_link = following, ""
        raise StoppedError(f"it goes in circles, last at the node {node}")

    def _check_way(self, way: Way, node: str) -> None:
        """Raises StoppedError where the node's tables hold it back."""
        match way.kind:
            case WayKind.CLOSED:
                raise StoppedError("held back: no gateway node carries its policy's address, and the gateway is Closed")
            case WayKind.FENCED:
                raise StoppedError(f"held back: the lease of the gateway node {node} has run out")
            case WayKind.HELD:
                raise StoppedError(f"held back: the agent on {node} does not know yet which policies select the pod")

    async def _leave_here(self, node: str, source: IPAddress, way: Way) -> IPAddress:
        """This is the gateway node."""
        at = f"node {node}"
        seen = way.eip if not way.node_ip else await self.view.address_of(node, version=source.version)
        if seen is None:
            raise StoppedError(f"{at} has no address for the policy {way.policy}: the packet is dropped")
        policy = await self.view.policy_with(seen)
        by = "" if policy is None else f"EgressGatewayPolicy {policy.metadata.namespace}/{policy.metadata.name}"
        dump = await self.view.dump(node)
        packet = Packet(source=source, destination=self.destination, mark=way.mark, input_link="")
        decision = self._route(dump.node, packet, at=at)
        if decision.result is not RouteResult.FORWARD:
            raise StoppedError(f"{at} has no route to {self.destination}: {decision.result} ({_by(decision)})")
        self._hop(at, f"sends it out as {seen} by {', '.join(decision.links)}", by or _by(decision))
        back = (
            "" if node == self.pod.spec.node_name else f", which sends them to {self.pod.spec.node_name} by its tunnel"
        )
        self.replies = f"to the node {node}{back}"
        return seen

    async def _through_tunnel(self, node: str, source: IPAddress, way: Way, decision: Decision) -> IPAddress:
        gateway = await self.view.gateway_with(way.mark)
        if gateway is None:
            raise StoppedError(f"no EgressTunnel has the mark {way.mark:#x} that node {node} gives it")
        self._hop(
            f"node {node}", f"wraps it for the gateway node {gateway} by {', '.join(decision.links)}", _by(decision)
        )
        sender = await self.view.mark_of(node)
        if sender is None:
            raise StoppedError(f"the EgressTunnel of node {node} has no mark: the node {gateway} drops what it sends")
        sets = NftSets.of((await self.view.dump(gateway)).tables or ())
        there = find_way(sets, source, self.destination, sender=sender)
        if there.kind is not WayKind.HERE:
            self._check_way(there, gateway)
            raise StoppedError(
                f"the node {gateway} does not carry the policy's address (any more): it drops the packet"
            )
        return await self._leave_here(gateway, source, there)

    async def _is_here(self, node: str, decision: Decision) -> bool:
        """Whether the link leads to a pod of this node, whoever has wired it."""
        link = _link((await self.view.dump(node)).node, decision)
        if link is not None and link.alias.startswith(_POD_ALIAS):
            return True
        pod = await self.view.pod_at(self.destination)
        return pod is not None and pod.spec.node_name == node and not decision.gateways

    async def _note_pod_elsewhere(self) -> None:
        """A router between nodes may know the way to a pod, as in a VPC, or may not."""
        pod = await self.view.pod_at(self.destination)
        if pod is not None:
            whom, node = _name(pod), pod.spec.node_name
            self.doubts.append(f"{self.destination} is the pod {whom} on {node}, and the next hop is no node")

    async def _arrive(self, at: str, source: IPAddress, decision: Decision) -> IPAddress:
        pod = await self.view.pod_at(self.destination)
        whom = "a container that no pod of the API server has" if pod is None else f"the pod {_name(pod)}"
        self._hop(at, f"hands it to {whom} by {', '.join(decision.links)}", _by(decision))
        return source

    async def _next_node(self, decision: Decision) -> str | None:
        for gateway in decision.gateways or (str(self.destination),):
            if (node := await self.view.node_at(ip_address(gateway))) is not None:
                return node
        return None

    async def _translate_destination(self, sets: NftSets, node: str) -> bool:
        """A Service becomes one of its endpoints, a host port its pod; True for a node port, whose packets kube-proxy
        masquerades. Raises StoppedError where a Service has none.
        """
        service = await self.view.service_at(self.destination)
        if service is not None:
            if self.port is None:
                raise StoppedError(f"{self.destination} is the {_service_name(service)}, which has ports: name one")
            asked = self.port, self.protocol
            port = next((each for each in service.spec.ports if (each.port, each.protocol.lower()) == asked), None)
            if port is None:
                raise StoppedError(f"the {_service_name(service)} has no port {self.port}/{self.protocol.upper()}")
            await self._choose_endpoint(service, port, node)
            return False
        if self.port is None or await self.view.node_at(self.destination) is None:
            return False
        service = await self.view.service_with_node_port(self.port, self.protocol)
        if service is not None:
            port = next(each for each in service.spec.ports if each.node_port == self.port)
            await self._choose_endpoint(service, port, node)
            return service.spec.external_traffic_policy != "Local"
        self._translate_host_port(sets, node)
        return False

    async def _choose_endpoint(self, service: Service, port: ServicePort, node: str) -> None:
        found = [
            (address, each.port)
            for slice_, addresses in await self.view.endpoints(service, version=self.destination.version)
            for each in slice_.ports or ()
            if (each.name or "") == port.name
            for address in addresses
        ]
        if not found:
            raise StoppedError(f"the {_service_name(service)} has no ready endpoint")
        address, number = min(found)
        action = f"picks one of {len(found)} endpoints: {address} port {number}"
        self._hop(f"node {node}", action, _service_name(service))
        self.destination, self.port = ip_address(address), number

    def _translate_host_port(self, sets: NftSets, node: str) -> None:
        """As the node that has the address does; another one sends it there first."""
        names = HOST_PORT_SETS[Family.of(self.destination)]
        if self.port is None or not sets.has(names.own, self.destination):
            return
        for maps, key in (
            (names.one, (self.destination, self.protocol, self.port)),
            (names.every, (self.protocol, self.port)),
        ):
            if (address := sets.get(maps.addresses, *key)) is not None:
                port = int(sets.get(maps.ports, *key) or self.port)
                self._hop(f"node {node}", f"has the host port lead to {address} port {port}", maps.addresses.table)
                self.destination, self.port = ip_address(address), port
                return

    def _note_translators(self, dump: NodeDump, node: str) -> None:
        """Tables of others that may give packets another source."""
        for entry in dump.tables or ():
            rule = entry.get("rule")
            if rule is not None and rule["table"] not in _KNOWN_TABLES and _translates(rule["expr"]):
                self.doubts.append(f"the table {rule['family']} {rule['table']} of {node} translates sources")

    # --- parts

    def _route(self, namespace: NamespaceDump, packet: Packet, *, at: str) -> Decision:
        decision = find_route(namespace, packet)
        self.doubts += [f"{at}: {doubt}" for doubt in decision.doubts]
        return decision

    def _source_of(self, pod: Pod) -> IPAddress | None:
        found = (address for address in addresses_of(pod) if address.version == self.destination.version)
        return next(found, None)

    def _hop(self, at: str, action: str, by: str) -> None:
        self.hops.append(HopDocument(at=at, action=action, by=by))


_POD_ALIAS: Final = "COIL:"
_KNOWN_TABLES: Final = frozenset({"coil-eip", "coil-host-ports", "kube-proxy"})


def _translates(expressions: list[dict[str, object]]) -> bool:
    return any("snat" in each or "masquerade" in each for each in expressions)


def _by(decision: Decision) -> str:
    """The rule and the route, as iproute2 would name them."""
    if decision.rule is None:
        return "no rule leads to a route"
    if decision.route is None:
        return f"rule {decision.rule.priority}: {decision.rule.action}"
    gateways = "".join(f" via {gateway}" for gateway in decision.gateways)
    return f"rule {decision.rule.priority}, table {decision.route.table}: {decision.route.destination}{gateways}"


def _link(namespace: NamespaceDump, decision: Decision) -> LinkDump | None:
    return next((link for link in namespace.links if link.name in decision.links), None)


def _remote(link: LinkDump) -> IPAddress | None:
    """The other end of a tunnel."""
    value = next((value for name, value in link.info.items() if name.endswith("_REMOTE")), None)
    return None if value is None else ip_address(value)


def _egresses_of(pod: Pod) -> list[tuple[str, str]]:
    """Namespace and name of the Egresses that the pod names."""
    return [
        (key.removeprefix(ANNOTATION_EGRESS_PREFIX), name.strip())
        for key, names in sorted(pod.metadata.annotations.items())
        if key.startswith(ANNOTATION_EGRESS_PREFIX)
        for name in names.split(",")
    ]


def _service_name(service: Service) -> str:
    return f"Service {service.metadata.namespace}/{service.metadata.name}"


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
