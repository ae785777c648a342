"""Pods that another plugin has given addresses and wired: coild adds egress NAT, and no more (`--enable-ipam=false`).

    ADD:  the host's end of the pod's veth gets an alias with the pod's UID ─► egress
    DEL:  nothing but to forget it: all that was made is in a namespace that goes

Nothing here deletes, and nothing routes. The alias is for the next process, which finds the pod's namespace by it, and
by its UID the pod; an attachment is its pod's UID and interface, so that a new sandbox of a pod takes the place of the
one before. A runtime may repeat the DEL of a sandbox long after its successor came, so a DEL forgets only what it is
known to be about, and the sweep what has no veth any more.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from coil.ipam.attachment import AttachmentKey, ContainerId
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName, parse_link_name
from coil.netlink.error import PodCheckError
from coil.netlink.host import NetnsPath, PodLink
from coil.netlink.namespace import Namespace
from coil.podnet.alias import PodAlias
from coild.model.address_source import PodName
from coild.model.keyed_executor import KeyedExecutor
from coild.model.pod_egress import PodEgress, PodSite
from coild.pods.pod_service import REPLY_SECONDS, UnknownAttachmentError

NO_POOL = ""
"""In the place of a pool in an alias: the addresses are another plugin's."""


class ChainedNetwork(Protocol):
    """The part of `coil.netlink.host.HostNetwork` that is used here."""

    async def pod_links(self) -> list[PodLink]: ...

    async def name_host_end(self, ifname: LinkName, alias: PodAlias, netns: NetnsPath) -> LinkName | None: ...

    async def open_pod_namespace(self, alias: PodAlias) -> Namespace | None: ...


@dataclass(frozen=True, slots=True)
class ChainedRequest:
    """An ADD with the result so far. `key` has the container; `addresses` in the order of the result."""

    key: AttachmentKey
    netns: NetnsPath
    pod: PodName
    addresses: tuple[IPAddress, ...]
    deadline: float = math.inf


@dataclass(frozen=True, slots=True)
class _Attached:
    """`container` is None for what an earlier process has added."""

    alias: PodAlias | None
    container: ContainerId | None


class ChainedPods:
    """One per process. `uid_of` finds out a pod's UID where the runtime does not tell it; "" for an unknown pod."""

    def __init__(
        self,
        *,
        network: ChainedNetwork,
        egress: PodEgress,
        uid_of: Callable[[PodName, float], Awaitable[str]],
        turns: KeyedExecutor,
        log: FilteringBoundLogger,
    ) -> None:
        self._network = network
        self._egress = egress
        self._uid_of = uid_of
        self._turns = turns
        self._log = log
        self._attached: dict[AttachmentKey, _Attached] = {}

    async def recover(self) -> list[PodSite]:
        """Read back from the kernel what earlier processes have added. Once, at start. Raises NetlinkError."""
        sites = [
            PodSite(
                key=AttachmentKey(ContainerId(alias.container_id), alias.ifname),
                pod=PodName("", "", alias.container_id),
                addresses=(),
                alias=alias,
            )
            for alias in await self._aliases()
        ]
        self._attached = {site.key: _Attached(site.alias, None) for site in sites}
        self._log.info("recovered from the kernel", pods=len(sites))
        return sites

    async def add(self, request: ChainedRequest) -> None:
        """Give the pod its egress. Idempotent. Raises NetlinkError or EgressRefusedError; then it has none of it."""
        deadline = request.deadline - REPLY_SECONDS
        uid = request.pod.uid or await self._uid_of(request.pod, deadline)
        # A pod that nobody knows cannot be found again either; its container is as good a name as any until then.
        key = AttachmentKey(ContainerId(uid or request.key.container_id), request.key.ifname)
        alias = PodAlias(NO_POOL, uid, request.key.ifname) if uid else None
        await self._turns.take(key, lambda: self._add(key, alias, request, deadline))

    async def delete(self, container: AttachmentKey) -> None:
        """Forget it. Whatever is unknown is fine. Never fails."""
        for key in self._keys_of(container):
            await self._turns.take(key, lambda key=key: self._delete(key, container))  # type: ignore[misc]

    async def check(self, container: AttachmentKey, pod_uid: str) -> None:
        """Return if the attachment is known and its veth still there. Raises UnknownAttachmentError or NetlinkError."""
        keys = [*self._keys_of(container), AttachmentKey(ContainerId(pod_uid), container.ifname)]
        attached = next((self._attached[key] for key in keys if key in self._attached), None)
        if attached is None:
            raise UnknownAttachmentError(
                f"container {container.container_id} has no attachment {container.ifname} on this node"
            )
        if attached.alias is None:
            return
        namespace = await self._network.open_pod_namespace(attached.alias)
        if namespace is None:
            raise PodCheckError((f"the link with the alias of pod {attached.alias.container_id}",))
        namespace.close()

    async def collect(self) -> None:
        """Forget what has no veth any more. Raises NetlinkError."""
        # Only what rested before the kernel was asked can be judged by its answer.
        resting = {key: attached for key, attached in self._attached.items() if key not in self._turns}
        present = set(await self._aliases())
        for key, attached in resting.items():
            if attached.alias is not None and attached.alias not in present and self._attached.get(key) is attached:
                self._forget(key)

    async def _add(self, key: AttachmentKey, alias: PodAlias | None, request: ChainedRequest, deadline: float) -> None:
        link = None
        if alias is not None:
            link = await self._network.name_host_end(parse_link_name(key.ifname), alias, request.netns)
        if link is None:
            self._log.warning(
                "pod will not be found again: its interface has no other end here, or its UID is unknown",
                container=request.key.container_id,
            )
        attached = _Attached(alias if link is not None else None, request.key.container_id)
        self._attached[key] = attached
        site = PodSite(
            key=key,
            pod=request.pod,
            addresses=_first_of_each_family(request.addresses),
            alias=attached.alias,
            netns=request.netns,
        )
        try:
            await self._egress.connect(site, deadline=deadline)
        except Exception:
            self._forget(key)
            raise

    async def _delete(self, key: AttachmentKey, container: AttachmentKey) -> None:
        attached = self._attached.get(key)
        if attached is not None and attached.container == container.container_id:
            self._forget(key)

    def _forget(self, key: AttachmentKey) -> None:
        self._attached.pop(key, None)
        self._egress.forget(key)

    def _keys_of(self, container: AttachmentKey) -> list[AttachmentKey]:
        return [
            key
            for key, attached in self._attached.items()
            if attached.container == container.container_id and key.ifname == container.ifname
        ]

    async def _aliases(self) -> list[PodAlias]:
        return [link.alias for link in await self._network.pod_links() if link.alias.pool == NO_POOL]


def _first_of_each_family(addresses: tuple[IPAddress, ...]) -> tuple[IPAddress, ...]:
    """Those that the API server will tell of the pod, by which its routers know it."""
    first: dict[Family, IPAddress] = {}
    for address in addresses:
        first.setdefault(Family.of(address), address)
    return tuple(first.values())
