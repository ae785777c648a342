"""An EgressTunnel for each Node: mark, tunnel addresses and hardware address, and what the Node says of itself.

Identities must differ between all tunnels, so all are planned together, by one worker, under one key. Nothing is
remembered: they are planned from the present objects, which a new leader first reads from the API server itself, as its
cache may not show the last writes of the one before. The tunnel of a Node that is gone is deleted once the API server
confirms that; one that is deleted while its Node exists is created again.

The phase moves from nothing to Init here; `tunnel_phase_reconciler` writes the others that are the controller's.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import NODES, Node
from coil.crd.egress_tunnel import EGRESS_TUNNELS, EgressTunnel, TunnelPhase
from coil.crd.meta import ObjectMeta
from coil.crd.names import NodeName
from coil.eip.tunnel_plan import TunnelIdentity, TunnelNets, TunnelSpaceError, plan_tunnels
from coil.kube.api_client import ApiClient
from coil.kube.errors import AlreadyExistsError, ApiError, NotFoundError
from coil.manager.term import Term
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil.reconcile.own_write import OwnWrites, work_through

MESH: Final = "mesh"
"""The only key."""
_BATCH_WINDOW: Final = 0.1
LATE_SECONDS: Final = 0.5
"""Until the next attempt when a cache lags behind."""
FULL_SECONDS: Final = 30.0
"""Until the next attempt when there is no room for another tunnel."""
_NODES_PER_TURN = 200


class TunnelReconciler:
    """Of one term, which begins with one live list. `written` follows the cache of tunnels."""

    def __init__(
        self,
        *,
        client: ApiClient,
        nodes: Cache[Node],
        tunnels: Cache[EgressTunnel],
        nets: TunnelNets,
        written: OwnWrites[EgressTunnel],
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._tunnels = tunnels
        self._nets = nets
        self._written = written
        self._log = log
        self._begun = False

    def setup(self, term: Term, *, resync: float) -> None:
        controller = term.controller("egresstunnel", self.reconcile)
        controller.watch(self._nodes, _changed_nodes, batch_window=_BATCH_WINDOW)
        controller.watch(self._tunnels, _changed_tunnels, batch_window=_BATCH_WINDOW)
        controller.resync(lambda: [MESH], every=resync)

    async def reconcile(self, _key: str) -> Result:
        """Bring all tunnels in line. Raises the first refusal of the API server, after the others are done."""
        if not self._begun and not await self._begin():
            return RequeueAfter(LATE_SECONDS)
        nodes = {node.metadata.name: node for node in self._nodes.items()}
        tunnels = self._known_tunnels()
        missing = [name for name in nodes if name not in tunnels]
        await work_through([tunnel for name, tunnel in tunnels.items() if name not in nodes], self._remove)
        await work_through(missing, self._create)
        tunnels = self._known_tunnels()
        late = any(name not in tunnels for name in missing)
        try:
            identities = plan_tunnels(tunnels.values(), self._nets)
        except TunnelSpaceError as error:
            self._log.error("no room for another tunnel: configure a larger subnet", error=str(error))
            return RequeueAfter(FULL_SECONDS)
        await work_through(await self._changes(nodes, tunnels, identities), self._patch)
        return RequeueAfter(LATE_SECONDS) if late else DONE

    async def _begin(self) -> bool:
        """Whether the cache shows what the previous leader has written."""
        listed = await self._client.list(EGRESS_TUNNELS)
        cached = [(tunnel, self._tunnels.get(tunnel.metadata.name)) for tunnel in listed]
        self._begun = all(seen is not None and _ours(seen) == _ours(tunnel) for tunnel, seen in cached)
        return self._begun

    def _known_tunnels(self) -> dict[str, EgressTunnel]:
        """Those in the cache, and those that it does not show yet."""
        known = {tunnel.metadata.name: tunnel for tunnel in self._tunnels.items()}
        return known | {tunnel.metadata.name: tunnel for tunnel in self._written.unseen()}

    async def _create(self, name: str) -> None:
        try:
            created = await self._client.create(EGRESS_TUNNELS, EgressTunnel(metadata=ObjectMeta(name=name)))
        except AlreadyExistsError:
            return
        self._written.note(None, created, cached=self._tunnels.get(name))
        self._log.info("tunnel created", node=name)

    async def _remove(self, tunnel: EgressTunnel) -> None:
        name = tunnel.metadata.name
        try:
            await self._client.get(NODES, name)
        except NotFoundError:
            pass
        else:
            return  # it was just created, and its event leads to another reconcile
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
        self._written.note(tunnel, written, cached=self._tunnels.get(name))


def plan_patch(tunnel: EgressTunnel, node: Node, identity: TunnelIdentity) -> dict[str, Any]:
    """What has to change in the controller's part of a tunnel's status; empty if nothing has to."""
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


def _changed_nodes(old: Node | None, new: Node | None) -> Iterable[str]:
    """A node was created or deleted, or has other addresses."""
    return [MESH] if old is None or new is None or _networks(old) != _networks(new) else []


def _changed_tunnels(old: EgressTunnel | None, new: EgressTunnel | None) -> Iterable[str]:
    """A tunnel was created or deleted, or somebody else has written the controller's part of its status."""
    return [MESH] if old is None or new is None or _ours(old) != _ours(new) else []


def _networks(node: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A node's own addresses, and its pods' networks."""
    return tuple(sorted({str(address) for address in node.addresses()})), tuple(map(str, node.pod_networks()))


def _ours(tunnel: EgressTunnel) -> tuple[object, ...]:
    status = tunnel.status
    end = status.tunnel.ipv4, status.tunnel.ipv6, status.tunnel.mac
    return (
        *(tunnel.metadata.uid, status.mark, status.node_addresses, status.pod_cidrs, end),
        status.phase in {"", TunnelPhase.PENDING},
    )
