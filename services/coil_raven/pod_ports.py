"""The ports of pods in Neutron: one for each pod, found again by the pod's UID.

A term begins with a list of them, so that a port which exists is adopted without a call for each pod. From then on what
is known is what the calls answered, and what `refresh` has found. A creation whose answer was lost is looked for by its
name before it is repeated.
"""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from coil.neutron.identity import ClusterId, Identity, Kind, describe, parse_identity
from coil.neutron.resource import Port
from coil.openstack.error import ExhaustedError, NotFoundError, OpenStackError, QuotaError, UnavailableError
from coil.openstack.neutron import Neutron, PortRequest, own
from coil_raven.namespace_network import NamespaceNetwork
from coil_raven.network_removal import POD_OWNER
from coil_raven.port_pool import PortPools


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOnNode:
    """A pod that is to have a port. `host` is its node, as Neutron's agents name it."""

    namespace: str
    name: str
    uid: str
    host: str


class PodPorts:
    """Of one term. Calls for different pods may be under way at the same time, but not for the same.

    `pools` have ports that may be taken in place of a creation.
    """

    def __init__(self, neutron: Neutron, *, cluster: ClusterId, pools: PortPools, log: FilteringBoundLogger) -> None:
        self._neutron = neutron
        self._pools = pools
        self._cluster = cluster
        self._log = log
        self._known: dict[str, Port] = {}
        self._uncertain: set[str] = set()
        self._loaded = False
        self._loading = asyncio.Lock()

    async def load(self) -> None:
        """Find out which there are, once. Raises OpenStackError; then it is found out at the next call."""
        if self._loaded:
            return
        async with self._loading:
            if not self._loaded:
                await self._refresh()

    async def refresh(self) -> frozenset[str]:
        """Find out which there are; the UIDs of pods whose ports were deleted or are in another state since.

        Raises OpenStackError. What other calls have done while Neutron answered stands against the answer.
        """
        async with self._loading:
            return await self._refresh()

    async def _refresh(self) -> frozenset[str]:
        before, waiting_before = dict(self._known), self._pools.ids()
        listed: dict[str, list[Port]] = {}
        waiting: list[Port] = []
        for port in await self._neutron.ports(device_owner=POD_OWNER):
            if (uid := self._uid(port)) is not None:
                listed.setdefault(uid, []).append(port)
            elif self._pools.is_pooled(port):
                waiting.append(port)
        changed = {uid for uid, port in before.items() if uid not in listed and self._known.get(uid) is port}
        for uid in changed:
            del self._known[uid]
        doubled: list[Port] = []
        for uid, ports in listed.items():
            if uid in before and uid not in self._known:
                continue  # deleted in the meantime
            known = self._known.get(uid)
            if known is None or all(port.id != known.id for port in ports):
                known = self._known[uid] = min(ports, key=lambda port: port.id)
            for port in ports:
                if port.id != known.id:
                    doubled.append(port)
                elif known is before.get(uid) and port != known:
                    self._known[uid] = port
                    changed.add(uid)
        self._pools.adopt(waiting, before=waiting_before, taken={port.id for port in self._known.values()})
        self._loaded = True
        for port in doubled:
            self._log.warning("doubled port deleted", port=port.id, name=port.name)
            await self._neutron.delete_port(port.id)
        return frozenset(changed)

    async def look(self, uids: Collection[str]) -> frozenset[str]:
        """Ask for the ports of these pods; the UIDs of those that are in another state now. Raises OpenStackError."""
        before = {known.id: (uid, known) for uid in uids if (known := self._known.get(uid)) is not None}
        changed = set()
        for port in await self._neutron.ports(ids=list(before)) if before else ():
            uid, known = before[port.id]
            if port != known and self._known.get(uid) is known:
                self._known[uid] = port
                changed.add(uid)
        return frozenset(changed)

    def known(self) -> dict[str, Port]:
        """The ports by the UIDs of their pods, as they were when they were last looked at. A copy."""
        return dict(self._known)

    def idle(self) -> list[Port]:
        """The ports that wait for pods. A copy."""
        return self._pools.ports()

    def uids(self) -> frozenset[str]:
        """The UIDs of the pods that have ports, or may have."""
        return frozenset(self._known) | self._uncertain

    async def ensure(self, pod: PodOnNode, network: NamespaceNetwork) -> Port:
        """The pod's port, on its namespace's network; created unless there is one. Raises OpenStackError.

        One that could not be bound, or is bound on another host than the pod's, is bound again.
        """
        await self.load()
        name = self._name(pod.uid)
        known = self._known.get(pod.uid)
        if known is None and pod.uid in self._uncertain:
            found: list[Port] = own(await self._neutron.ports(name=name), name)
            if found:
                known = self._keep(pod.uid, min(found, key=lambda port: port.id))
        if known is not None:
            if not _is_elsewhere(known, pod.host):
                return known
            try:
                return self._keep(pod.uid, await self._neutron.bind_port(known.id, pod.host))
            except NotFoundError:
                self._known.pop(pod.uid, None)
        self._uncertain.add(pod.uid)
        try:
            port = await self._take_or_create(
                PortRequest(
                    name=name,
                    description=describe("Pod", pod.namespace, pod.name),
                    project=network.project,
                    network=network.network.id,
                    device_id=pod.uid,
                    device_owner=POD_OWNER,
                    host=pod.host,
                    groups=frozenset({network.group}),
                    subnets=tuple(subnet.id for subnet in network.subnets),
                )
            )
        except UnavailableError:
            # It may exist. A cancellation, too, leaves the UID among the uncertain ones.
            raise
        except OpenStackError:
            self._uncertain.discard(pod.uid)
            raise
        return self._keep(pod.uid, port)

    async def _take_or_create(self, request: PortRequest) -> Port:
        port = await self._pools.take(request)
        if port is not None:
            return port
        try:
            return await self._neutron.create_port(request)
        except (QuotaError, ExhaustedError) as error:
            # Pods come before ports that only wait.
            network = request.network if isinstance(error, ExhaustedError) else None
            if not await self._pools.evict(network):
                raise
        return await self._neutron.create_port(request)

    async def rebind(self, pod: PodOnNode, port: Port) -> Port:
        """Unbind the pod's port and bind it again, so that Neutron's back end plugs it in anew. Raises OpenStackError.

        Interrupted in between, it stays unbound, and `ensure` binds it.
        """
        self._keep(pod.uid, await self._neutron.bind_port(port.id, ""))
        return self._keep(pod.uid, await self._neutron.bind_port(port.id, pod.host))

    async def remove(self, uid: str) -> None:
        """Delete the pod's port; without one there is no call. Idempotent. Raises OpenStackError."""
        await self.load()
        ports: Iterable[Port] = () if (known := self._known.get(uid)) is None else (known,)
        if uid in self._uncertain:
            name = self._name(uid)
            ports = own(await self._neutron.ports(name=name), name)
        for port in ports:
            await self._neutron.delete_port(port.id)
        self._known.pop(uid, None)
        self._uncertain.discard(uid)

    def _keep(self, uid: str, port: Port) -> Port:
        self._known[uid] = port
        self._uncertain.discard(uid)
        return port

    def _uid(self, port: Port) -> str | None:
        identity = parse_identity(port.name)
        if identity is None or identity.cluster != self._cluster or identity.kind is not Kind.PORT:
            return None
        return identity.uid

    def _name(self, uid: str) -> str:
        return Identity(self._cluster, Kind.PORT, uid).name


def _is_elsewhere(port: Port, host: str) -> bool:
    """Whether the port is not bound where it has to be. An account that may not see hosts is shown none."""
    return port.binding_failed or port.unbound or (bool(port.host_id) and port.host_id != host)
