"""The cluster as a trace looks at it: objects and dumps, read when they are asked for, and once."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final, TypeVar

from coil.crd.builtin import INTERNAL_IP, NODES, PODS, SERVICES, Node, Pod, Service
from coil.crd.egress import EGRESSES, Egress
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES, EgressGatewayPolicy
from coil.crd.egress_tunnel import EGRESS_TUNNELS, EgressTunnel
from coil.crd.endpoint_slice import ENDPOINT_SLICES, SERVICE_LABEL, EndpointSlice
from coil.crd.resource import Resource
from coil.kernel.family import IPAddress
from coil.kube.errors import NotFoundError
from coil.page.node_dump import NamespaceDump, NodeDump, Part
from kubectl_coil.cluster import Reader
from kubectl_coil.ipam.addresses import addresses_of, has_own_addresses
from kubectl_coil.node_reader import NodeReader

_PARTS: Final = (Part.NODE, Part.PODS, Part.TABLES)

T = TypeVar("T")


@dataclass(slots=True)
class ClusterView:
    """Methods raise ApiError, and NodeUnreadableError where they read nodes."""

    _cluster: Reader
    _nodes: NodeReader
    _lists: dict[str, Sequence[Any]] = field(default_factory=dict)
    _dumps: dict[str, NodeDump] = field(default_factory=dict)

    async def pod(self, namespace: str, name: str) -> Pod:
        """Raises NotFoundError."""
        return await self._cluster.get(PODS, name, namespace=namespace)

    async def pod_at(self, address: IPAddress) -> Pod | None:
        """The pod with an address of its own."""
        pods: Sequence[Pod] = await self._list(PODS)
        return next((pod for pod in pods if has_own_addresses(pod) and address in addresses_of(pod)), None)

    async def node_at(self, address: IPAddress) -> str | None:
        """The name of the Node with that address."""
        nodes: Sequence[Node] = await self._list(NODES)
        return next((node.metadata.name for node in nodes if address in _own_addresses(node)), None)

    async def address_of(self, node: str, *, version: int) -> IPAddress | None:
        """The node's own address of that family."""
        nodes: Sequence[Node] = await self._list(NODES)
        found = next((node_ for node_ in nodes if node_.metadata.name == node), None)
        addresses = [] if found is None else _own_addresses(found)
        return next((address for address in addresses if address.version == version), None)

    async def service_at(self, address: IPAddress) -> Service | None:
        """The Service with that cluster, external or load balancer address."""
        services: Sequence[Service] = await self._list(SERVICES)
        return next((service for service in services if str(address) in _service_addresses(service)), None)

    async def service_with_node_port(self, port: int, protocol: str) -> Service | None:
        """The Service that each node serves at that port; `protocol` in lower case."""
        services: Sequence[Service] = await self._list(SERVICES)
        wanted = port, protocol
        return next(
            (each for each in services if any((p.node_port, p.protocol.lower()) == wanted for p in each.spec.ports)),
            None,
        )

    async def service_named(self, namespace: str, name: str) -> Service | None:
        services: Sequence[Service] = await self._list(SERVICES)
        wanted = namespace, name
        return next((each for each in services if (each.metadata.namespace, each.metadata.name) == wanted), None)

    async def endpoints(self, service: Service, *, version: int) -> list[tuple[EndpointSlice, list[str]]]:
        """The slices of that family with the ready addresses of each."""
        namespace, name = service.metadata.namespace, service.metadata.name
        slices = await self._cluster.list(ENDPOINT_SLICES, namespace=namespace, labels=f"{SERVICE_LABEL}={name}")
        return [
            (each, [address for endpoint in each.endpoints or () if endpoint.ready for address in endpoint.addresses])
            for each in slices
            if each.address_type == f"IPv{version}"
        ]

    async def egress(self, namespace: str, name: str) -> Egress | None:
        return await _or_none(self._cluster.get(EGRESSES, name, namespace=namespace))

    async def gateway_with(self, mark: int) -> str | None:
        """The node that the mark of floating egress addresses leads to."""
        tunnels: Sequence[EgressTunnel] = await self._list(EGRESS_TUNNELS)
        return next((each.metadata.name for each in tunnels if _number(each.status.mark) == mark), None)

    async def mark_of(self, node: str) -> int | None:
        """The mark of floating egress addresses that leads to the node; None where it has none."""
        tunnels: Sequence[EgressTunnel] = await self._list(EGRESS_TUNNELS)
        return next((_number(each.status.mark) for each in tunnels if each.metadata.name == node), None)

    async def policy_with(self, eip: IPAddress) -> EgressGatewayPolicy | None:
        """A policy with that floating address."""
        policies: Sequence[EgressGatewayPolicy] = await self._list(EGRESS_GATEWAY_POLICIES)
        return next((each for each in policies if str(eip) in (each.status.eip.ipv4, each.status.eip.ipv6)), None)

    async def dump(self, node: str) -> NodeDump:
        """What the node holds."""
        if node not in self._dumps:
            self._dumps[node] = await self._nodes.read(node, _PARTS)
        return self._dumps[node]

    async def namespace_of(self, pod: Pod) -> NamespaceDump | None:
        """The network namespace that has the pod's addresses; None if the node's dump has none."""
        wanted = {str(address) for address in addresses_of(pod)}
        dump = await self.dump(pod.spec.node_name)

        def is_its(namespace: NamespaceDump) -> bool:
            return any(each.address.partition("/")[0] in wanted for each in namespace.addresses)

        return next(filter(is_its, dump.pods), None)

    async def _list(self, resource: Resource[Any]) -> Sequence[Any]:
        if resource.plural not in self._lists:
            found = await _or_none(self._cluster.list(resource))
            self._lists[resource.plural] = found or ()  # the cluster may not serve the kind
        return self._lists[resource.plural]


async def _or_none(reading: Coroutine[Any, Any, T]) -> T | None:
    try:
        return await reading
    except NotFoundError:
        return None


def _own_addresses(node: Node) -> list[IPAddress]:
    return [address for each in node.status.addresses if each.type == INTERNAL_IP and (address := _parse(each.address))]


def _service_addresses(service: Service) -> set[str]:
    spec = service.spec
    ingress = {each.ip for each in service.status.load_balancer.ingress}
    return {spec.cluster_ip, *spec.cluster_ips, *spec.external_ips, *ingress} - {"", "None"}


def _parse(text: str) -> IPAddress | None:
    return _attempt(ip_address, text)


def _number(text: str) -> int | None:
    return _attempt(lambda word: int(word, 0), text)


def _attempt(parse: Callable[[str], T], text: str) -> T | None:
    try:
        return parse(text)
    except ValueError:
        return None
