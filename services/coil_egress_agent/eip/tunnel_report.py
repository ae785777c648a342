"""What the agent reports in the status of its node's EgressTunnel: the parent link, whether the mesh works, and what
else on the node keeps policies from having effect.

It is written only when it changes. What the controller says of the node itself (`NodeNotReady`, `HeartbeatTimeout`) is
the controller's to take back.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from msgspec import to_builtins
from structlog.typing import FilteringBoundLogger

from coil.crd.egress_tunnel import EgressTunnel, TunnelPhase
from coil.crd.meta import Condition
from coil.crd.names import NodeName
from coil.eip.gateway_status import keep_times
from coil.kernel.link import ParentLink
from coil.kernel.wireguard import PublicKey
from coil.manager.term import Channel, Term
from coil.reconcile.backoff import Backoff
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, Result
from coil_egress_agent.eip.node_assignment import parse_address

RETRY_BACKOFF: Final = Backoff(base=0.2, cap=30.0)
CALL_SECONDS: Final = 10.0

_CONTROLLERS: Final = frozenset({"", TunnelPhase.PENDING, TunnelPhase.HEARTBEAT_TIMEOUT, TunnelPhase.NODE_NOT_READY})
"""The phases that the controller ends, with Init."""


PatchStatus: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[EgressTunnel]]
"""Writes a merge patch of the status of the EgressTunnel of that name; with a resource version, ConflictError if the
object has changed since.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshReport:
    """The state of this node's end. `working` is False when it cannot be set up; `parent` may be known anyway. `key` is
    the node's, where the mesh is encrypted.
    """

    working: bool
    parent: ParentLink | None = None
    key: PublicKey | None = None


def parent_texts(parent: ParentLink, node_addresses: Collection[str]) -> Mapping[str, str]:
    """`status.tunnel.parent` as it is written: of each family the Node's own address, which peers insist on,
    or else the link's first that leads further than the link.
    """
    texts = {"name": str(parent.name), "ipv4": "", "ipv6": ""}
    known = {parse_address(text) for text in node_addresses}
    for interface in sorted(parent.interfaces, key=lambda interface: interface.ip not in known):
        if interface.is_link_local and interface.ip not in known:
            continue
        key = f"ipv{interface.version}"
        texts[key] = texts[key] or str(interface)
    return texts


def plan_report(
    tunnel: EgressTunnel, report: MeshReport, *, now: datetime, conditions: Iterable[Condition] = ()
) -> dict[str, Any] | None:
    """The merge patch that says so; None when the status does already. Conditions of other types stay as they are."""
    status = tunnel.status
    phase = status.phase
    if phase not in _CONTROLLERS:
        phase = TunnelPhase.READY if report.working else TunnelPhase.FAILED
    parent = dict(parent_texts(report.parent, status.node_addresses)) if report.parent is not None else None
    said = status.tunnel.parent
    tunnel_patch: dict[str, Any] = {}
    if parent is not None and parent != {"name": said.name, "ipv4": said.ipv4, "ipv6": said.ipv6}:
        tunnel_patch["parent"] = parent
    if (key := report.key or "") != status.tunnel.public_key:
        tunnel_patch["publicKey"] = key
    by_type = {condition.type: condition for condition in status.conditions}
    by_type |= {condition.type: condition for condition in keep_times(conditions, status.conditions, now)}
    told = tuple(by_type.values())
    if not tunnel_patch and phase == status.phase and told == status.conditions:
        return None
    patch: dict[str, Any] = {"lastHeartbeatTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    if phase != status.phase:
        patch["phase"] = str(phase)
    if tunnel_patch:
        patch["tunnel"] = tunnel_patch
    if told != status.conditions:
        patch["conditions"] = to_builtins(told)
    return {"metadata": {"resourceVersion": tunnel.metadata.resource_version}, "status": patch}


class TunnelReporter:
    """The reconciler of one key, `node`'s, whose EgressTunnel `tunnel` gives as last seen."""

    def __init__(
        self,
        patch_status: PatchStatus,
        tunnel: Callable[[], EgressTunnel | None],
        *,
        node: NodeName,
        log: FilteringBoundLogger,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._patch_status = patch_status
        self._tunnel = tunnel
        self._node = node
        self._log = log
        self._wall = wall
        self._report: MeshReport | None = None
        self._conditions: dict[str, Condition] = {}
        self._reports: Channel[NodeName] = Channel()
        self._written: tuple[str, EgressTunnel] | None = None

    def setup(self, term: Term, tunnels: Cache[EgressTunnel]) -> None:
        """Of the process's only term."""
        controller = term.controller("egresstunnel", self.reconcile, timeout=CALL_SECONDS, backoff=RETRY_BACKOFF)
        controller.watch(tunnels, self._own_changes)
        controller.watch_channel(self._reports, lambda node: [node])

    def tell(self, report: MeshReport) -> None:
        """This is how it is now; said before the term begins, it is written when that begins."""
        if report != self._report:
            self._report = report
            self._reports.send(self._node)

    def tell_condition(self, condition: Condition) -> None:
        """So it is now, as to conditions of that type. Its time of transition is not looked at."""
        if condition != self._conditions.get(condition.type):
            self._conditions[condition.type] = condition
            self._reports.send(self._node)

    def _own_changes(self, old: EgressTunnel | None, new: EgressTunnel | None) -> Iterable[str]:
        if any(tunnel is not None and tunnel.metadata.name == self._node for tunnel in (old, new)):
            yield self._node

    async def reconcile(self, _node: str) -> Result:
        """Bring the status in line with the last report."""
        tunnel = self._latest()
        if tunnel is None or self._report is None:
            return DONE
        patch = plan_report(tunnel, self._report, now=self._wall(), conditions=self._conditions.values())
        if patch is None:
            return DONE
        written = await self._patch_status(tunnel.metadata.name, patch)
        # Until the watch has caught up, what was written is the latest: deciding on the cache would be a conflict.
        self._written = (tunnel.metadata.resource_version, written)
        self._log.info("tunnel status written", phase=written.status.phase, parent=written.status.tunnel.parent.name)
        return DONE

    def _latest(self) -> EgressTunnel | None:
        cached = self._tunnel()
        if cached is not None and self._written is not None:
            before, written = self._written
            if cached.metadata.resource_version == before and cached.metadata.uid == written.metadata.uid:
                return written
        self._written = None
        return cached
