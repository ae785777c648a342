"""What coil-raven knows, as a document of `coil.page`. Pure: the same snapshot, the same document."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Final, TypeVar

from coil.crd.builtin import Namespace, Pod, Service
from coil.kernel.family import IPNetwork
from coil.neutron.resource import Port
from coil.neutron.service_plan import ListenerPlan, wants_balancer
from coil.neutron.supernet import Supernet
from coil.openstack.recent_calls import CallsSnapshot
from coil.page import neutron_document as page
from coil_raven.balancers import BalancerReport
from coil_raven.caches import wants_port
from coil_raven.namespace_network import NamespaceNetwork
from coil_raven.recent_events import RecentEvent

MOST: Final = 10_000
"""Entries of a list."""
MEMBERS: Final = 64
"""Members of a listener that are listed."""

T = TypeVar("T")

_TROUBLE_FIRST: Final = {
    state: rank
    for rank, state in enumerate(
        (
            page.PortState.NOT_BOUND,
            page.PortState.WAITING,
            page.PortState.DOWN,
            page.PortState.LEAVING,
            page.PortState.ACTIVE,
            page.PortState.IDLE,
        )
    )
}
_TROUBLED_SERVICE_FIRST: Final = {
    state: rank
    for rank, state in enumerate(
        (
            page.ServiceState.FAILED,
            page.ServiceState.WAITING,
            page.ServiceState.CHANGING,
            page.ServiceState.LEAVING,
            page.ServiceState.AS_PLANNED,
        )
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicesSnapshot:
    """The Services, what is known of their load balancers, and their floating IPs by UID."""

    services: Sequence[Service]
    reports: Sequence[BalancerReport]
    floating_ips: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TermSnapshot:
    """What the leader knew at one moment. `networks` by namespace, `ports` by the UIDs of pods; `idle` wait for pods.

    `taken` is what namespaces have of the supernets. `services` is None without load balancers.
    """

    namespaces: Sequence[Namespace]
    pods: Sequence[Pod]
    networks: Mapping[str, NamespaceNetwork]
    ports: Mapping[str, Port]
    idle: Sequence[Port]
    taken: Sequence[IPNetwork]
    services: ServicesSnapshot | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RavenSnapshot:
    """`term` is None on a replica that does not lead. The objects in it are frozen, so it may go to another thread."""

    replica: str
    leads: bool
    leader: str
    at: datetime
    cluster: str
    supernets: Sequence[Supernet]
    term: TermSnapshot | None
    calls: CallsSnapshot
    paused: float
    events: Sequence[RecentEvent]


def describe_raven(snapshot: RavenSnapshot) -> page.NeutronDocument:
    """The whole document, with at most `MOST` entries in each list, those first that are not as they should be.

    Linear in the number of pods and Services, and sorting them.
    """
    calls, events = _describe_calls(snapshot.calls, snapshot.paused), tuple(map(_describe_event, snapshot.events))
    leader = snapshot.leader or None
    term = snapshot.term
    if term is None:
        return page.NeutronDocument(
            replica=snapshot.replica,
            leads=snapshot.leads,
            leader=leader,
            at=snapshot.at,
            cluster=snapshot.cluster,
            calls=calls,
            events=events,
        )
    networks = sorted(
        _describe_networks(term), key=lambda each: (each.state is page.NetworkState.READY, each.namespace)
    )
    ports = sorted(
        _describe_ports(term),
        key=lambda each: (_TROUBLE_FIRST[each.state], each.namespace or "", each.pod or each.description),
    )
    services = (
        None
        if term.services is None
        else sorted(
            _describe_services(term.services),
            key=lambda each: (_TROUBLED_SERVICE_FIRST[each.state], each.namespace or "", each.name),
        )
    )
    sizes = {"networks": len(networks), "ports": len(ports), "services": len(services or ())}
    return page.NeutronDocument(
        replica=snapshot.replica,
        leads=snapshot.leads,
        leader=leader,
        at=snapshot.at,
        cluster=snapshot.cluster,
        supernets=tuple(_describe_supernet(each, term.taken) for each in snapshot.supernets),
        networks=tuple(networks[:MOST]),
        ports=tuple(ports[:MOST]),
        port_counts={state.value: count for state, count in _count_states(ports).items()},
        services=None if services is None else tuple(services[:MOST]),
        left_out={name: size - MOST for name, size in sizes.items() if size > MOST},
        calls=calls,
        events=events,
    )


def _describe_supernet(supernet: Supernet, taken: Iterable[IPNetwork]) -> page.SupernetDocument:
    count = supernet.count_taken(taken)
    return page.SupernetDocument(
        network=str(supernet.network),
        part_length=supernet.length,
        parts=supernet.size,
        taken=count,
        left=supernet.size - count,
    )


def _describe_networks(term: TermSnapshot) -> Iterator[page.NetworkDocument]:
    ports = Counter(port.network_id for port in term.ports.values())
    for namespace in term.namespaces:
        name = namespace.metadata.name
        whole = term.networks.get(name)
        if namespace.metadata.deleting:
            state = page.NetworkState.LEAVING
        else:
            state = page.NetworkState.WAITING if whole is None else page.NetworkState.READY
        if whole is None:
            yield page.NetworkDocument(namespace=name, state=state)
            continue
        network = whole.network
        yield page.NetworkDocument(
            namespace=name,
            state=state,
            id=network.id,
            project=network.project_id or None,
            segmentation_id=network.segmentation_id,
            mtu=network.mtu or None,
            subnets=tuple(
                page.SubnetDocument(id=each.id, cidr=each.cidr, gateway=each.gateway_ip) for each in whole.subnets
            ),
            ports=ports[network.id],
        )


def _describe_ports(term: TermSnapshot) -> Iterator[page.PortDocument]:
    left = dict(term.ports)
    for pod in term.pods:
        port = left.pop(pod.metadata.uid, None)
        if port is not None or wants_port(pod):
            yield _describe_port(pod, port)
    for port in left.values():
        yield _port(port, page.PortState.LEAVING)
    for port in term.idle:
        yield _port(port, page.PortState.IDLE)


def _describe_port(pod: Pod, port: Port | None) -> page.PortDocument:
    metadata, node = pod.metadata, pod.spec.node_name or None
    if port is None:
        return page.PortDocument(
            state=page.PortState.WAITING, namespace=metadata.namespace, pod=metadata.name, node=node
        )
    if not wants_port(pod):
        state = page.PortState.LEAVING
    elif port.binding_failed or port.unbound:
        state = page.PortState.NOT_BOUND
    else:
        state = page.PortState.ACTIVE if port.active else page.PortState.DOWN
    return _port(port, state, namespace=metadata.namespace, pod=metadata.name, node=node)


def _port(port: Port, state: page.PortState, **of_pod: str | None) -> page.PortDocument:
    return page.PortDocument(
        state=state,
        id=port.id,
        addresses=tuple(each.ip_address for each in port.fixed_ips),
        mac=port.mac_address,
        host=port.host_id or None,
        description=port.description or "",
        **of_pod,
    )


def _count_states(ports: Iterable[page.PortDocument]) -> dict[page.PortState, int]:
    counts = Counter(map(attrgetter("state"), ports))
    return {state: counts[state] for state in page.PortState}


def _describe_services(snapshot: ServicesSnapshot) -> Iterator[page.ServiceDocument]:
    reports: dict[str, list[BalancerReport]] = {}
    for report in snapshot.reports:
        reports.setdefault(report.uid, []).append(report)
    for service in snapshot.services:
        metadata = service.metadata
        found = reports.pop(metadata.uid, [])
        if not found and (metadata.deleting or not wants_balancer(service)):
            continue
        leaving = metadata.deleting or not wants_balancer(service)
        yield page.ServiceDocument(
            namespace=metadata.namespace,
            name=metadata.name,
            type=service.spec.type or "ClusterIP",
            state=page.ServiceState.LEAVING if leaving else _service_state(found),
            floating_ip=snapshot.floating_ips.get(metadata.uid),
            load_balancers=tuple(_describe_balancers(found)),
        )
    for uid, found in reports.items():
        yield page.ServiceDocument(
            name=found[0].balancer.description or found[0].balancer.name,
            state=page.ServiceState.LEAVING,
            floating_ip=snapshot.floating_ips.get(uid),
            load_balancers=tuple(_describe_balancers(found)),
        )


def _service_state(reports: Sequence[BalancerReport]) -> page.ServiceState:
    if not reports:
        return page.ServiceState.WAITING
    if any(report.balancer.failed for report in reports):
        return page.ServiceState.FAILED
    return page.ServiceState.AS_PLANNED if all(each.as_planned for each in reports) else page.ServiceState.CHANGING


def _describe_balancers(reports: Iterable[BalancerReport]) -> Iterator[page.LoadBalancerDocument]:
    for report in sorted(reports, key=lambda each: (":" in each.balancer.vip_address, each.balancer.vip_address)):
        balancer = report.balancer
        yield page.LoadBalancerDocument(
            id=balancer.id,
            vip=balancer.vip_address,
            provider=balancer.provider,
            provisioning_status=balancer.provisioning_status,
            as_planned=report.as_planned,
            listeners=() if report.plan is None else tuple(map(_describe_listener, report.plan.listeners)),
        )


def _describe_listener(listener: ListenerPlan) -> page.ListenerDocument:
    return page.ListenerDocument(
        protocol=listener.protocol,
        port=listener.port,
        member_count=len(listener.members),
        members=tuple(
            page.MemberDocument(address=each.address, port=each.port) for each in sorted(listener.members)[:MEMBERS]
        ),
    )


def _describe_calls(snapshot: CallsSnapshot, paused: float) -> page.CallsDocument:
    count = sum(each.count for each in snapshot.calls.values())
    busiest = sorted(snapshot.calls.items(), key=lambda entry: (-entry[1].count, entry[0]))
    return page.CallsDocument(
        span_seconds=round(snapshot.span, 1),
        count=count,
        per_second=round(count / snapshot.span, 3),
        errors=sum(each.errors for each in snapshot.calls.values()),
        paused_seconds=round(paused, 1),
        by_call=tuple(
            page.CallDocument(
                call=call, count=each.count, errors=each.errors, mean_seconds=round(each.seconds / each.count, 3)
            )
            for call, each in busiest
        ),
        last_errors=tuple(
            page.CallErrorDocument(at=each.at, call=each.call, code=each.code, message=each.message)
            for each in snapshot.errors
        ),
    )


def _describe_event(event: RecentEvent) -> page.EventDocument:
    said = event.statement
    return page.EventDocument(
        at=event.at,
        count=event.count,
        type=said.type,
        kind=said.subject.kind,
        namespace=said.subject.namespace,
        name=said.subject.name,
        reason=said.reason,
        message=said.message,
    )
