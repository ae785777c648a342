"""Gives each pod its port, and tells the pod's node of it in an annotation.

A port is made once the pod has a node, on the network of its namespace. A pod in its node's own network has none, and
one that has finished, or is no more, gives its port back. No finalizer holds a pod: a term begins with a look at all
ports, and that look is repeated, so nothing is left of what was deleted while coil-raven was down.

A node is told of a port once it is bound, and again when Neutron knows that it is plugged in. One that no agent binds
leads to an Event, and is tried again. One that stays DOWN is bound anew, and then replaced, unless the pod uses it.
"""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface

from prometheus_client import Counter
from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import PODS, Node, Pod
from coil.kernel.link import MacAddress
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError, NotFoundError
from coil.kube.errors import InvalidError as InvalidObjectError
from coil.manager.term import Term
from coil.neutron.handoff import (
    ANNOTATION_HOST,
    ANNOTATION_PORT,
    Handoff,
    HandoffError,
    PortAddress,
    parse_handoff,
    render_handoff,
)
from coil.neutron.resource import Port, PortId, ProjectId
from coil.openstack.error import (
    DeniedError,
    ExhaustedError,
    InvalidError,
    OpenStackError,
    QuotaError,
    ThrottledError,
)
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject
from coil_raven.caches import BY_NAMESPACE, BY_NODE, BY_UID, wants_port
from coil_raven.cooldown import Cooldown
from coil_raven.namespace_network import NamespaceNetwork
from coil_raven.namespace_reconciler import Networks
from coil_raven.pod_ports import PodOnNode, PodPorts
from coil_raven.port_status import PortStatus, Remedy

SLOW_RETRY = 30.0
"""Seconds to the next try where only people can change something."""
_FOR_PEOPLE = (QuotaError, ExhaustedError, DeniedError, InvalidError)


def handoff_of(pod_uid: str, port: Port, network: NamespaceNetwork, *, port_type: str) -> Handoff:
    """What the pod's node is told of its port."""
    subnets = {subnet.id: subnet for subnet in network.subnets}
    addresses = []
    nameservers: dict[str, None] = {}
    for fixed in port.fixed_ips:
        subnet = subnets[fixed.subnet_id]
        interface = ip_interface(f"{fixed.ip_address}/{subnet.network.prefixlen}")
        addresses.append(PortAddress(interface, subnet.gateway))
        nameservers.update(dict.fromkeys(subnet.dns_nameservers))
    return Handoff(
        port=port.id,
        pod_uid=pod_uid,
        mac=MacAddress(port.mac_address.lower()),
        addresses=tuple(addresses),
        network=network.network.id,
        project=ProjectId(port.project_id),
        type=port_type,
        mtu=network.network.mtu,
        segmentation=network.network.segmentation_id,
        nameservers=tuple(map(ip_address, nameservers)),
        active=port.active,
        rules=network.rules,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReconciler:
    """The keys are UIDs of pods, so that a pod and the next one of its name are never mixed up.

    `pods` has `POD_INDEXERS`. `remedies` has the label `remedy` (`remedies_counter`). `resync` is how often Neutron is
    asked for all ports, in seconds.
    """

    client: ApiClient
    pods: Cache[Pod]
    ports: PodPorts
    statuses: PortStatus
    remedies: Counter
    networks: Networks
    nodes: Cache[Node]
    cooldown: Cooldown
    port_type: str
    workers: int
    resync: float
    recorder: Recorder
    log: FilteringBoundLogger

    def setup(self, term: Term) -> None:
        controller = term.controller("pod", self.reconcile, workers=self.workers, expected_errors=(OpenStackError,))
        controller.watch(self.pods, _changed)
        controller.watch(self.nodes, self._pods_on)
        controller.watch_channel(self.networks.ready, self._pods_of)
        controller.watch_channel(self.statuses.changed, lambda uid: (uid,))
        term.add_runnable("port-status", self.statuses.run)
        controller.resync(self.discrepancies, every=self.resync, at_start=True)

    async def reconcile(self, uid: str) -> Result:
        """Bring the port of the pod with that UID in line with it."""
        pod = next(iter(self.pods.by_index(BY_UID, uid)), None)
        if pod is None or not wants_port(pod):
            self.statuses.forget(uid)
            await self.ports.load()
            if uid in self.ports.uids() and (left := self.cooldown.left(uid)):
                return RequeueAfter(left)
            await self.ports.remove(uid)
            self.cooldown.forget(uid)
            return DONE
        network = self.networks.present.get(pod.metadata.namespace)
        if network is None:
            # It is queued when the network is ready.
            return DONE
        on_node = PodOnNode(
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            uid=uid,
            host=host_of(self.nodes, pod.spec.node_name),
        )
        try:
            port = await self.ports.ensure(on_node, network)
        except (*_FOR_PEOPLE, ThrottledError) as error:
            self._warn(pod, "NoPort", f"it gets no port in Neutron: {error}")
            if isinstance(error, ThrottledError):
                raise
            return RequeueAfter(SLOW_RETRY)
        if port.binding_failed:
            self._warn(
                pod,
                "PortNotBound",
                f"no agent of Neutron on the host {port.host_id!r} could bind the port {port.id}. If the agent has "
                f"another name for the node, the node's annotation {ANNOTATION_HOST} takes it",
            )
            return RequeueAfter(SLOW_RETRY)
        former = port
        if port.active:
            self.statuses.forget(uid)
        else:
            self.statuses.follow(uid)
            port = await self._remedy(pod, on_node, port, network)
        await self._annotate(pod, port, network, replaced=port.id != former.id)
        return DONE

    async def _remedy(self, pod: Pod, on_node: PodOnNode, port: Port, network: NamespaceNetwork) -> Port:
        """The pod's port, after what is due about one that stays DOWN.

        Public reports: networking agents miss an event, and every further ADD of the pod gets the same dead port.
        """
        uid = pod.metadata.uid
        if self.statuses.exhausted(uid):
            self._warn(
                pod,
                "PortDown",
                f"Neutron reports its port {port.id} as DOWN, also after it was bound again: see Neutron's agent on "
                f"the host {on_node.host!r}",
            )
        remedy = self.statuses.take_remedy(uid)
        if remedy is Remedy.REPLACE and pod.status.pod_ips:
            # Its containers have the port's address already.
            remedy = None
        if remedy is None:
            return port
        self.remedies.labels(remedy).inc()
        self.log.warning("a port stays DOWN", port=port.id, pod=pod.metadata.name, remedy=str(remedy))
        if remedy is Remedy.REBIND:
            return await self.ports.rebind(on_node, port)
        await self.ports.remove(uid)
        return await self.ports.ensure(on_node, network)

    async def _annotate(self, pod: Pod, port: Port, network: NamespaceNetwork, *, replaced: bool) -> None:
        """Tell the pod's node. `replaced`: the former port was coil-raven's to replace, so nobody has to know."""
        text = render_handoff(handoff_of(pod.metadata.uid, port, network, port_type=self.port_type))
        noted = _noted(pod)
        if noted == text:
            return
        former = None if noted is None else _port_of(noted, pod.metadata.uid)
        if not replaced and former not in (None, port.id):
            self._warn(
                pod,
                "PortReplaced",
                f"its port {former} in Neutron was deleted, and it has {port.id} now, with another address. Delete the "
                "pod, so that the next one is plugged in there",
            )
        patch = {"metadata": {"uid": pod.metadata.uid, "annotations": {ANNOTATION_PORT: text}}}
        try:
            await self.client.patch(PODS, pod.metadata.name, patch, namespace=pod.metadata.namespace)
        except (NotFoundError, InvalidObjectError) as error:
            # Deleted, or replaced by another pod of its name: the event is on its way.
            self.log.debug("pod was not annotated", pod=pod.metadata.name, error=str(error))

    async def discrepancies(self) -> AsyncIterator[str]:
        """UIDs that have a port and no pod, or whose port was deleted or is in another state.

        The cache may lag behind a former leader's, so the API server has the last word.
        """
        try:
            for uid in await self.ports.refresh():
                yield uid
            candidates = {uid for uid in self.ports.uids() if not self.pods.by_index(BY_UID, uid)}
            if not candidates:
                return
            present = {pod.metadata.uid for pod in await self.client.list(PODS)}
        except (ApiError, OpenStackError) as error:
            self.log.warning("ports without a pod were not looked for", error=str(error))
            return
        for uid in candidates - present:
            self.log.info("port without a pod", uid=uid)
            yield uid

    def _pods_of(self, network: NamespaceNetwork) -> Iterable[str]:
        for pod in self.pods.by_index(BY_NAMESPACE, network.namespace):
            yield pod.metadata.uid

    def _pods_on(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """The pods of a node whose name in Neutron has changed."""
        node = new or old
        if node is not None and old is not None and _host(old) != (None if new is None else _host(new)):
            for pod in self.pods.by_index(BY_NODE, node.metadata.name):
                yield pod.metadata.uid

    def _warn(self, pod: Pod, reason: str, message: str) -> None:
        self.recorder.warn(EventSubject.of(PODS, pod.metadata), reason=reason, message=message)


def _changed(old: Pod | None, new: Pod | None) -> Iterable[str]:
    """The pods of this change that have come to want a port, or ceased to, or whose annotation somebody has touched."""
    if old is not None and (new is None or old.metadata.uid != new.metadata.uid):
        yield old.metadata.uid
    if new is None:
        return
    before = old if old is not None and old.metadata.uid == new.metadata.uid else None
    if before is None or wants_port(before) != wants_port(new) or _noted(before) != _noted(new):
        yield new.metadata.uid


def _noted(pod: Pod) -> str | None:
    return pod.metadata.annotations.get(ANNOTATION_PORT)


def host_of(nodes: Cache[Node], node_name: str) -> str:
    """The host that Neutron's agents know the node by: what the node's annotation says, or else the node's name."""
    node = nodes.get(node_name)
    return node_name if node is None else _host(node)


def _host(node: Node) -> str:
    return node.metadata.annotations.get(ANNOTATION_HOST) or node.metadata.name


def remedies_counter() -> Counter:
    """One for each process, to be registered."""
    counter = Counter(
        "coil_raven_port_remedies", "What was done about ports that stayed DOWN.", ["remedy"], registry=None
    )
    for remedy in Remedy:
        counter.labels(remedy)
    return counter


def _port_of(text: str, pod_uid: str) -> PortId | None:
    """The port that an annotation names; None for one that was not coil-raven's."""
    try:
        return parse_handoff(text, pod_uid=pod_uid).port
    except HandoffError:
        return None
