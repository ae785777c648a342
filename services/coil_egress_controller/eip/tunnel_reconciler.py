"""An EgressTunnel for each Node: mark, tunnel addresses and hardware address, and what the Node says of itself.

Identities must differ between all tunnels, so all are looked at together, by one worker, under one key. Nothing is
remembered: they are planned from the objects that are there, which a new leader first reads from the API server itself,
as its cache may not show the last writes of the one before. A tunnel whose Node is gone goes, when the API server says
so, too; one that is deleted under a living Node is made again.

The phase moves from nothing to Init here; what else the controller says in it is `tunnel_phase_controller`'s.
"""

import asyncio
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import NODES, Node
from coil.crd.egress_tunnel import EGRESS_TUNNELS, EgressTunnel, TunnelPhase
from coil.crd.meta import ObjectMeta
from coil.crd.names import NodeName
from coil.eip.tunnel_plan import TunnelIdentity, TunnelNets, TunnelSpaceError, plan_tunnels
from coil.kube.api_client import ApiClient
from coil.kube.errors import AlreadyExistsError, ApiError, NotFoundError
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil_egress_controller.eip.bounded_work import work_through
from coil_egress_controller.eip.own_write import OwnWrites
from coil_egress_controller.eip.view import EipView

MESH: Final = "mesh"
"""The only key."""
SETTLE_SECONDS: Final = 0.1
LATE_SECONDS: Final = 0.5
"""Until the next look when a cache has not caught up, or there is no room for another tunnel."""
_NODES_PER_TURN = 200
_OWN_ADDRESSES = frozenset({"InternalIP", "ExternalIP"})


class TunnelReconciler:
    """Of one term. `written` follows the source of tunnels."""

    def __init__(
        self,
        *,
        client: ApiClient,
        view: EipView,
        nets: TunnelNets,
        written: OwnWrites[EgressTunnel],
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._view = view
        self._nets = nets
        self._written = written
        self._log = log
        self._begun = False

    async def reconcile(self, _key: str) -> Result:
        """Bring all tunnels in line. Raises the first refusal of the API server, after the others are done."""
        if not self._begun and not await self._begin():
            return RequeueAfter(LATE_SECONDS)
        nodes = {node.metadata.name: node for node in self._view.nodes.items()}
        tunnels = self._tunnels()
        missing = [name for name in nodes if name not in tunnels]
        await work_through([tunnel for name, tunnel in tunnels.items() if name not in nodes], self._remove)
        await work_through(missing, self._create)
        tunnels = self._tunnels()
        late = any(name not in tunnels for name in missing)
        try:
            identities = plan_tunnels(tunnels.values(), self._nets)
        except TunnelSpaceError as error:
            self._log.error("no room for another tunnel: give a wider subnet", why=str(error))
            return RequeueAfter(LATE_SECONDS * 60)
        await work_through(await self._changes(nodes, tunnels, identities), self._patch)
        return RequeueAfter(LATE_SECONDS) if late else DONE

    def changed_nodes(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """A node that has come or gone, or has other addresses."""
        if old is None or new is None or _networks(old) != _networks(new):
            yield MESH

    def changed_tunnels(self, old: EgressTunnel | None, new: EgressTunnel | None) -> Iterable[str]:
        """A tunnel that has come or gone, or in which somebody else has written what is ours."""
        if old is None or new is None or _ours(old) != _ours(new):
            yield MESH

    async def _begin(self) -> bool:
        """Whether the cache shows what the leader before has written."""
        listed = await self._client.list(EGRESS_TUNNELS)
        cached = [(tunnel, self._view.tunnels.get(tunnel.metadata.name)) for tunnel in listed]
        self._begun = all(seen is not None and _ours(seen) == _ours(tunnel) for tunnel, seen in cached)
        return self._begun

    def _tunnels(self) -> dict[str, EgressTunnel]:
        """Those in the cache, and those of which it does not know yet."""
        known = {tunnel.metadata.name: tunnel for tunnel in self._view.tunnels.items()}
        return known | {tunnel.metadata.name: tunnel for tunnel in self._written.unseen()}

    async def _create(self, name: str) -> None:
        try:
            created = await self._client.create(EGRESS_TUNNELS, EgressTunnel(metadata=ObjectMeta(name=name)))
        except AlreadyExistsError:
            return
        self._written.note(None, created, cached=self._view.tunnels.get(name))
        self._log.info("tunnel made", node=name)

    async def _remove(self, tunnel: EgressTunnel) -> None:
        name = tunnel.metadata.name
        try:
            await self._client.get(NODES, name)
        except NotFoundError:
            pass
        else:
            return  # it has just come, and its event makes for another look
        self._written.forget(name)
        try:
            await self._client.delete(EGRESS_TUNNELS, name, uid=tunnel.metadata.uid)
        except NotFoundError:
            return
        self._log.info("tunnel of an absent node deleted", node=name)

    async def _changes(
        self,
        nodes: Mapping[str, Node],
        tunnels: Mapping[str, EgressTunnel],
        identities: Mapping[NodeName, TunnelIdentity],
    ) -> list[tuple[EgressTunnel, dict[str, Any]]]:
        """The tunnels whose status is not as it should be, and what to write."""
        changes = []
        for number, (name, tunnel) in enumerate(tunnels.items(), start=1):
            node, identity = nodes.get(name), identities.get(NodeName(name))
            if node is not None and identity is not None and (patch := plan_patch(tunnel, node, identity)):
                changes.append((tunnel, patch))
            if number % _NODES_PER_TURN == 0:
                await asyncio.sleep(0)
        return changes

    async def _patch(self, change: tuple[EgressTunnel, dict[str, Any]]) -> None:
        tunnel, status = change
        name = tunnel.metadata.name
        body = {"metadata": {"resourceVersion": tunnel.metadata.resource_version}, "status": status}
        try:
            written = await self._client.patch(EGRESS_TUNNELS, name, body, subresource="status")
        except ApiError as error:
            self._written.forget(name)
            if isinstance(error, NotFoundError):
                return
            raise
        self._written.note(tunnel, written, cached=self._view.tunnels.get(name))


def plan_patch(tunnel: EgressTunnel, node: Node, identity: TunnelIdentity) -> dict[str, Any]:
    """What of the controller's part of a tunnel's status is to change; empty if nothing is."""
    status = tunnel.status
    addresses, pod_cidrs = _networks(node)
    wanted_end = {"ipv4": identity.end.ipv4, "ipv6": identity.end.ipv6, "mac": identity.end.mac}
    end = {"ipv4": status.tunnel.ipv4, "ipv6": status.tunnel.ipv6, "mac": status.tunnel.mac}
    patch: dict[str, Any] = {}
    if end != wanted_end:
        patch["tunnel"] = wanted_end
    if status.mark != identity.mark:
        patch["mark"] = identity.mark
    if status.node_addresses != addresses:
        patch["nodeAddresses"] = list(addresses)
    if status.pod_cidrs != pod_cidrs:
        patch["podCIDRs"] = list(pod_cidrs)
    if status.phase in {"", TunnelPhase.PENDING}:
        patch["phase"] = TunnelPhase.INIT.value
    return patch


def _networks(node: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A node's own addresses, and its pods' networks."""
    addresses = {entry.address for entry in node.status.addresses if entry.type in _OWN_ADDRESSES}
    return tuple(sorted(address for address in addresses if _is_address(address))), node.spec.pod_cidrs


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _ours(tunnel: EgressTunnel) -> tuple[object, ...]:
    status = tunnel.status
    end = status.tunnel.ipv4, status.tunnel.ipv6, status.tunnel.mac
    return (
        *(tunnel.metadata.uid, status.mark, status.node_addresses, status.pod_cidrs, end),
        status.phase in {"", TunnelPhase.PENDING},
    )
