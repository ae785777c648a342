"""Attaches pods to the network and detaches them: the heart of coild, between the CNI service and the kernel.

    ADD:  addresses from the source ─► plan ─► the kernel ─► egress   all of it, or nothing of it
    DEL:  the kernel forgets the veth and its routes ─► the source takes the addresses back

The order of a DEL is what keeps an address from being in two pods' hands. The kernel is the database: after a crash the
attachments are read back from the aliases of the links and from the pod table.

Operations on one attachment take turns (`coild.model.keyed_executor`), and so do the making and the deleting of links
of one name:
with names that are made from the pod's, a sandbox that is on its way out and its successor share one. Else nobody waits
for anybody. An operation that has begun runs to its end even if the runtime no longer waits: half a pod is worse than
one that the following DEL removes.

Routes to pods that others removed are put back: at start, and by the sweep, from one look at the pod table.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

from structlog.typing import FilteringBoundLogger

from coil.ipam.node_ledger import AttachmentKey, ContainerId
from coil.kernel.link import LinkName, parse_link_name
from coil.kernel.route import Route
from coil.netlink.error import NetlinkError, PodCheckError
from coil.netlink.host import NetnsPath
from coil.netlink.route import RouteAdditions
from coil.podnet.alias import PodAlias
from coil.podnet.gateway import HostAddresses
from coil.podnet.host_link import calico_link_name, random_link_name
from coil.podnet.plan import PodPlan, RoutePolicy, plan_pod, plan_pod_routes
from coil.reconcile.event_recorder import EventSubject, Recorder
from coild.model.address_source import AddressSource, AddressUnavailableError, PodAddresses, PodName
from coild.model.keyed_executor import KeyedExecutor
from coild.model.pod_egress import PodEgress, PodSite
from coild.pods.lost_route import find_lost
from coild.pods.pod_network import PodNetwork
from coild.pods.recovery import Attachment, recover_attachments

NO_ADDRESS = "NoAddress"
"""Reason of the Event about a pod that got no address."""

REPLY_SECONDS = 0.25
"""What is left of the caller's deadline for the answer, after a wait for an address that was as long as could be."""


class UnknownAttachmentError(Exception):
    """CHECK of something that was never added, or is deleted."""


@dataclass(frozen=True, slots=True)
class PodNetworkOptions:
    """What is the same for all pods of the node. `mtu` in bytes."""

    mtu: int
    gateways: HostAddresses
    policy: RoutePolicy
    compat_calico: bool


@dataclass(frozen=True, slots=True)
class AddRequest:
    """An ADD as the runtime asks for it. `deadline` is when it stops listening, by the event loop's clock; `network` is
    the name of the network, by which a GC tells what is its.
    """

    key: AttachmentKey
    netns: NetnsPath
    pod: PodName
    deadline: float = math.inf
    network: str = ""


class PodService:
    """One per process. See the module's text."""

    def __init__(
        self,
        *,
        source: AddressSource,
        network: PodNetwork,
        egress: PodEgress,
        turns: KeyedExecutor,
        options: PodNetworkOptions,
        acquire_timeout: float,
        recorder: Recorder,
        log: FilteringBoundLogger,
    ) -> None:
        self._source = source
        self._network = network
        self._egress = egress
        self._turns = turns
        self._options = options
        self._acquire_timeout = acquire_timeout
        self._recorder = recorder
        self._log = log
        self._attachments: dict[AttachmentKey, Attachment] = {}

    async def recover(self) -> None:
        """Read the attachments back from the kernel (`coild.pods.recovery`), and put back the routes that they lost.

        Once, before the first operation. Raises NetlinkError.
        """
        table = await self._network.pod_routes(self._options.policy.pod_table)
        self._attachments = await recover_attachments(self._network, self._source, table, log=self._log)
        self._log.info("recovered from the kernel", pods=len(self._attachments))
        await self._restore(self._attachments, table)

    async def add(self, request: AddRequest) -> PodPlan:
        """Attach the pod and return what was made. The same attachment again gives the same addresses.

        Raises AddressUnavailableError, NetlinkError, EgressRefusedError, ApiError, or ValueError for a name that the
        kernel would not take; then nothing was changed.
        """
        return await self._turns.take(request.key, lambda: self._add(request))

    async def delete(self, key: AttachmentKey) -> None:
        """Detach; an unknown attachment is fine. On return the address is free. Raises NetlinkError."""
        await self._turns.take(key, lambda: self._delete(key))

    async def check(self, key: AttachmentKey, netns: NetnsPath) -> None:
        """Return if all that the ADD made is still there.

        Raises UnknownAttachmentError, or NetlinkError saying what is missing.
        """
        await self._turns.take(key, lambda: self._check(key, netns))

    async def collect_garbage(self, network: str, valid: frozenset[AttachmentKey]) -> None:
        """Detach what was added to the network and is not among `valid`, all that the runtime knows of.

        What an earlier process has added is left alone, as nobody knows which network's it is; so is what an operation
        is under way for. Goes on after an error. Raises NetlinkError, the last there was.
        """
        failure: NetlinkError | None = None
        for key, attachment in list(self._attachments.items()):
            if attachment.network != network or key in valid or key in self._turns:
                continue
            self._log.info("the runtime does not know an attachment any more", container=key.container_id)
            try:
                await self._turns.take(key, partial(self._discard, key, attachment))
            except NetlinkError as error:
                failure = error
        if failure is not None:
            raise failure

    async def restore_routes(self) -> None:
        """Put back what others took out of the pod table of routes to pods. Raises NetlinkError."""
        # Only attachments that rested before the kernel was asked can be judged by its answer.
        resting = {key: attachment for key, attachment in self._attachments.items() if key not in self._turns}
        await self._restore(resting, await self._network.pod_routes(self._options.policy.pod_table))

    async def collect(self) -> None:
        """Take back addresses whose veth went with its namespace, without a DEL; then let the source collect."""
        # As above.
        resting = [key for key in self._source.held() | self._attachments.keys() if key not in self._turns]
        present = await self._present()
        for key in resting:
            if key not in present:
                await self._turns.take(key, lambda key=key: self._release_vanished(key))  # type: ignore[misc]
        await self._source.collect()

    def sites(self, pod_of: Callable[[AttachmentKey], PodName | None]) -> list[PodSite]:
        """Where the attached pods are; `pod_of` says whose an attachment is, as far as it is known."""
        return [
            PodSite(key=key, pod=pod_of(key), addresses=attachment.addresses.present, alias=_alias(key, attachment))
            for key, attachment in self._attachments.items()
        ]

    # --- one attachment

    async def _add(self, request: AddRequest) -> PodPlan:
        known = self._attachments.get(request.key)
        if known is not None:
            plan = self._plan(request.key, known)
            try:
                await self._network.check_pod(plan, request.netns)
            except PodCheckError as error:  # any other says nothing about the attachment, and leaves it alone
                self._log.info("attachment made anew", container=request.key.container_id, why=str(error))
            else:
                if known.network != request.network:
                    self._attachments[request.key] = replace(known, network=request.network)
                await self._connect(request, known)
                return plan
            # The addresses stay the pod's: what is repeated gets the same answer.
            await self._turns.take(known.host_name, lambda: self._detach(request.key))
        addresses = await self._acquire(request)
        try:
            attachment = Attachment(self._host_name(request), addresses, request.network)
            plan = self._plan(request.key, attachment)
            await self._turns.take(attachment.host_name, lambda: self._attach(request, attachment, plan))
        except BaseException:
            if known is None:
                self._source.revoke(request.key)
            else:
                self._source.release(request.key)
            raise
        try:
            await self._connect(request, attachment)
        except Exception:
            # The pod has been on the network, if only for a moment: its addresses rest as after any other DEL.
            await self._delete(request.key)
            raise
        return plan

    async def _connect(self, request: AddRequest, attachment: Attachment) -> None:
        site = PodSite(
            key=request.key,
            pod=request.pod,
            addresses=attachment.addresses.present,
            alias=_alias(request.key, attachment),
            netns=request.netns,
        )
        await self._egress.connect(site, deadline=request.deadline - REPLY_SECONDS)

    async def _acquire(self, request: AddRequest) -> PodAddresses:
        left = request.deadline - REPLY_SECONDS - asyncio.get_running_loop().time()
        try:
            return await self._source.acquire(request.key, request.pod, timeout=min(self._acquire_timeout, left))
        except AddressUnavailableError as error:
            pod = request.pod
            subject = EventSubject("v1", "Pod", pod.name, namespace=pod.namespace, uid=pod.uid)
            self._recorder.warn(subject, reason=NO_ADDRESS, message=str(error))
            raise

    async def _attach(self, request: AddRequest, attachment: Attachment, plan: PodPlan) -> None:
        await self._network.attach_pod(plan, request.netns)
        # There was no link of that name: whoever had it before has lost it, and must not delete this one.
        for key in [key for key, other in self._attachments.items() if other.host_name == attachment.host_name]:
            del self._attachments[key]
            self._egress.forget(key)
        self._attachments[request.key] = attachment

    async def _delete(self, key: AttachmentKey) -> None:
        self._egress.forget(key)
        attachment = self._attachments.get(key)
        if attachment is not None:
            await self._turns.take(attachment.host_name, lambda: self._detach(key))
        self._source.release(key)

    async def _discard(self, key: AttachmentKey, attachment: Attachment) -> None:
        if self._attachments.get(key) is attachment:
            await self._delete(key)

    async def _detach(self, key: AttachmentKey) -> None:
        # Asked again, as the link may have become another attachment's while this one waited for its turn.
        attachment = self._attachments.get(key)
        if attachment is not None:
            await self._network.detach_pod(attachment.host_name)
            del self._attachments[key]

    async def _check(self, key: AttachmentKey, netns: NetnsPath) -> None:
        attachment = self._attachments.get(key)
        if attachment is None:
            raise UnknownAttachmentError(f"container {key.container_id} has no attachment {key.ifname} on this node")
        await self._network.check_pod(self._plan(key, attachment), netns)

    async def _release_vanished(self, key: AttachmentKey) -> None:
        if key not in await self._present():
            self._log.info("veth is gone without a DEL; its addresses are free again", container=key.container_id)
            await self._delete(key)

    async def _present(self) -> frozenset[AttachmentKey]:
        links = await self._network.pod_links()
        return frozenset(AttachmentKey(ContainerId(link.alias.container_id), link.alias.ifname) for link in links)

    # --- routes that others removed

    async def _restore(self, attachments: Mapping[AttachmentKey, Attachment], table: list[Route]) -> None:
        wanted = {key: self._routes(key, attachment) for key, attachment in attachments.items()}
        lost = find_lost([route for routes in wanted.values() for route in routes], table)
        missing, refused = frozenset(lost.missing), [*lost.contested]
        restored = 0
        for key, attachment in list(attachments.items()) if missing else ():
            if routes := [route for route in wanted[key] if route in missing]:
                additions = await self._turns.take(key, partial(self._put_back, key, attachment, routes))
                restored += len(additions.added)
                refused += additions.refused
        if restored:
            self._log.warning("routes to pods were missing from the pod table and are back", routes=restored)
        for route in refused:
            self._log.warning("another's route has the place of a route to a pod", missing=str(route))

    async def _put_back(self, key: AttachmentKey, attachment: Attachment, routes: list[Route]) -> RouteAdditions:
        async def add() -> RouteAdditions:
            if self._attachments.get(key) is not attachment:
                return RouteAdditions()  # deleted meanwhile, or made anew
            try:
                return await self._network.add_routes(routes)
            except NetlinkError as error:
                self._log.warning("routes to a pod are missing", link=attachment.host_name, why=str(error))
                return RouteAdditions()

        return await self._turns.take(attachment.host_name, add)

    def _routes(self, key: AttachmentKey, attachment: Attachment) -> tuple[Route, ...]:
        """The routes that the attachment is to have: to addresses that no other has, as the books say."""
        held = self._source.holding(key)
        addresses = [address for address in attachment.addresses.present if held and address in held.present]
        return plan_pod_routes(attachment.host_name, addresses, self._options.policy)

    # --- planning

    def _plan(self, key: AttachmentKey, attachment: Attachment) -> PodPlan:
        addresses = attachment.addresses
        return plan_pod(
            host_name=attachment.host_name,
            ifname=parse_link_name(key.ifname),
            alias=_alias(key, attachment),
            addresses=(addresses.ipv4, addresses.ipv6),
            mtu=self._options.mtu,
            gateways=self._options.gateways,
            policy=self._options.policy,
        )

    def _host_name(self, request: AddRequest) -> LinkName:
        if self._options.compat_calico:
            return calico_link_name(namespace=request.pod.namespace, pod=request.pod.name)
        # Drawn from the attachment and not from a generator: an ADD that is repeated after a crash meets its own link.
        return random_link_name(sha256(f"{request.key.container_id}/{request.key.ifname}".encode()).digest()[:4])


def _alias(key: AttachmentKey, attachment: Attachment) -> PodAlias:
    return PodAlias(attachment.addresses.pool, key.container_id, key.ifname)
