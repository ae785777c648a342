"""Attaches pods to the network and detaches them: the heart of coild, between the CNI service and the kernel.

    ADD:  the source's addresses ─► plan ─► its wiring, in the kernel ─► egress ─► host ports   all of it, or nothing
    DEL:  no port of the node leads to the pod ─► the wiring takes the veth and its routes away ─► the source takes the
          addresses back

The order of a DEL is what keeps an address from being in two pods' hands. The kernel is the database: after a crash
the attachments are read back from it. Where addresses come from, and what wiring a pod means, is the source's affair
(`coild.model.address_source`); the engine is the same for all of them.

Operations on one attachment are serialised (`coild.model.keyed_executor`), and so are the making and the deleting of
links of one name: with names that are made from the pod's, a sandbox that is on its way out and its successor share
one. Otherwise nobody waits for anybody. An operation that has begun runs to its end even if the runtime no longer
waits: half a pod is worse than one that the following DEL removes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from structlog.typing import FilteringBoundLogger

from coil.ipam.occupancy import AttachmentKey
from coil.kernel.family import IPNetwork
from coil.kernel.link import LinkName
from coil.kube.errors import ApiError
from coil.netlink.error import NetlinkError, PodCheckError
from coil.netlink.host import NetnsPath
from coil.nft.netfilter import NftError
from coil.podnet.plan import PodPlan
from coil.reconcile.event_recorder import EventSubject, Recorder
from coild.model.address_source import NONE_ENDED, AddressSource, Ended
from coild.model.attachment import (
    UNNAMED,
    AddRequest,
    AddressUnavailableError,
    Attachment,
    HostPortTakenError,
    PodEgress,
    PodEgressError,
    PodHostPorts,
    PodName,
    UnknownAttachmentError,
    alias_key,
)
from coild.model.keyed_executor import KeyedExecutor

NO_ADDRESS = "NoAddress"
"""Reason of the Event about a pod that got no address."""

REPLY_SECONDS = 0.25
"""What is left of the caller's deadline for the answer, after a wait for an address that was as long as could be."""

T = TypeVar("T")


class PodEngine:
    """Implements `coild.model.attachment.PodService`. One per process; `acquire_timeout` in seconds."""

    def __init__(
        self,
        *,
        source: AddressSource,
        egress: PodEgress,
        host_ports: PodHostPorts,
        executor: KeyedExecutor,
        acquire_timeout: float,
        recorder: Recorder,
        log: FilteringBoundLogger,
    ) -> None:
        self._source = source
        self._wiring = source.wiring
        self._egress = egress
        self._host_ports = host_ports
        self._executor = executor
        self._acquire_timeout = acquire_timeout
        self._recorder = recorder
        self._log = log
        self._attachments: dict[AttachmentKey, Attachment] = {}
        self._identities: dict[AttachmentKey, AttachmentKey] = {}
        """Container's interface → attachment, where the source knows it by another key."""

    async def recover(self, ended: Ended = NONE_ENDED) -> None:
        """Read the attachments back from the kernel, and put back the routes that they lost.

        Those that have `ended` and are in the kernel still are for the caller to delete. Once, before the first
        operation. Raises NetlinkError.
        """
        for attachment in await self._wiring.recover(self._source, ended):
            self._attachments[attachment.key] = replace(attachment, pod=self._source.pod_of(attachment.key))
        self._log.info("recovered from the kernel", pods=len(self._attachments))
        await self.restore()

    def attachments(self) -> list[Attachment]:
        """The pods that are attached now."""
        return list(self._attachments.values())

    # --- operations of CNI

    async def add(self, request: AddRequest) -> PodPlan | None:
        """See `PodService`."""
        key = await self._source.identify(request.key, request.pod, deadline=request.deadline - REPLY_SECONDS)
        if key != request.key:
            self._identities[request.key] = key
        return await self._executor.run(key, lambda: self._add(key, request))

    async def delete(self, key: AttachmentKey, *, ended: float | None = None) -> None:
        """See `PodService`."""
        own = self._identities.get(key, key)
        await self._executor.run(own, lambda: self._delete_sandbox(own, key, ended))

    async def check(self, key: AttachmentKey, netns: NetnsPath, pod: PodName = UNNAMED) -> None:
        """See `PodService`."""
        own = self._identities.get(key, key)
        if own not in self._attachments:
            own = await self._source.identify(key, pod, deadline=asyncio.get_running_loop().time())
        await self._executor.run(own, lambda: self._check(own, key, netns))

    async def collect_garbage(self, network: str, valid: frozenset[AttachmentKey]) -> None:
        """See `PodService`."""
        failure: NetlinkError | NftError | None = None
        for key, attachment in list(self._attachments.items()):
            if not attachment.network or attachment.network != network or key in self._executor:
                continue
            if attachment.container is None or AttachmentKey(attachment.container, key.ifname) in valid:
                continue
            self._log.info("attachment is not known to the runtime any more", container=attachment.container)
            try:
                await self._executor.run(key, partial(self._delete_unchanged, key, attachment))
            except (NetlinkError, NftError) as error:
                failure = error
        if failure is not None:
            raise failure

    # --- what is put right periodically

    async def run_sweeps(self, interval: float) -> None:
        """Sweep every `interval` seconds, for ever. A sweep that fails is tried again with the next."""
        while True:
            await asyncio.sleep(interval)
            try:
                await self.repair()
                await self.collect()
            except (NetlinkError, NftError, ApiError) as error:
                self._log.warning("sweep not complete", error=str(error))

    async def repair(self) -> None:
        """Have the wiring put back what others removed, of the node's state and of the pods'. Raises NetlinkError."""
        await self._wiring.prepare()
        await self.restore()

    def is_routed(self, network: IPNetwork) -> bool:
        """Whether the network is the address of a pod that is attached here."""
        address = network.network_address
        return network.prefixlen == network.max_prefixlen and any(
            address in attachment.addresses for attachment in self._attachments.values()
        )

    async def restore(self) -> None:
        """Have the wiring put back what others removed. Raises NetlinkError."""
        # Only attachments that rested before the kernel was asked can be judged by its answer.
        resting = {key: attachment for key, attachment in self._attachments.items() if key not in self._executor}
        rightful: list[Attachment] = []
        for key, attachment in resting.items():
            held = self._source.holding(key)
            if addresses := tuple(address for address in attachment.addresses if address in held):
                rightful.append(replace(attachment, addresses=addresses))

        async def exclusively(key: AttachmentKey, work: Callable[[], Awaitable[None]]) -> None:
            async def unless_changed() -> None:
                if self._attachments.get(key) is resting[key]:  # else deleted meanwhile, or made anew
                    await work()

            await self._executor.run(key, lambda: self._exclusively_on(resting[key].link, unless_changed))

        if rightful:
            await self._wiring.restore(rightful, exclusively)

    async def collect(self) -> None:
        """Release attachments whose veth went with its namespace, without a DEL; then let the source collect.

        Asks the kernel once, however many they are. Raises NetlinkError, NftError or ApiError.
        """
        # As above.
        keys = [key for key in self._source.held() | self._attachments.keys() if key not in self._executor]
        resting = {key: self._attachments.get(key) for key in keys}
        present = await self._present()
        for key, attachment in resting.items():
            if key in present or (attachment is not None and attachment.alias is None):
                continue  # without an alias nothing says whether it is there
            await self._executor.run(key, partial(self._delete_vanished, key, attachment))
        await self._source.collect()

    # --- one attachment, within its turn

    async def _add(self, key: AttachmentKey, request: AddRequest) -> PodPlan | None:
        known = self._attachments.get(key)
        try:
            if known is not None and known.container == request.key.container_id:
                again = replace(known, pod=request.pod, netns=request.netns, network=request.network)
                plan: PodPlan | None = self._wiring.plan(again)
                try:
                    await self._wiring.check(again, plan, request.netns)
                except PodCheckError as error:  # any other says nothing about the attachment, and leaves it alone
                    self._log.info("attachment made anew", container=known.container, error=str(error))
                else:
                    self._attachments[key] = again
                    await self._connect(again, request)
                    return plan
                # The addresses stay the pod's: what is repeated gets the same answer.
                await self._exclusively_on(known.link, lambda: self._detach(key))
            return await self._make(key, request, undo=self._source.revoke if known is None else self._source.release)
        except BaseException:
            if key not in self._attachments:
                self._forget_identities(key)
            raise

    async def _make(
        self, key: AttachmentKey, request: AddRequest, *, undo: Callable[[AttachmentKey], None]
    ) -> PodPlan | None:
        """`undo` gives the addresses back if the pod never had them."""
        attachment = await self._acquire(key, request)
        try:
            plan: PodPlan | None = self._wiring.plan(attachment)
            if plan is not None:
                attachment = replace(attachment, link=plan.host.name)
            work = partial(self._attach, attachment, plan, request.netns)
            attachment = await self._exclusively_on(attachment.link, work)
        except BaseException:
            undo(key)
            raise
        try:
            await self._connect(attachment, request)
        except (PodEgressError, HostPortTakenError):
            # No container has run with these addresses, and a pod that waits for its Egress or a port is tried again
            # every few seconds: if they rested each time, it would use up its pool.
            self._egress.forget(key)
            await self._host_ports.withdraw(key)
            await self._exclusively_on(attachment.link, lambda: self._detach(key))
            undo(key)
            self._forget_identities(key)
            raise
        except Exception:
            # The pod has been on the network, if only for a moment: its addresses rest as after any other DEL.
            await self._delete(key)
            raise
        return plan

    async def _acquire(self, key: AttachmentKey, request: AddRequest) -> Attachment:
        left = request.deadline - REPLY_SECONDS - asyncio.get_running_loop().time()
        try:
            return await self._source.acquire(key, request, timeout=min(self._acquire_timeout, left))
        except AddressUnavailableError as error:
            pod = request.pod
            subject = EventSubject("v1", "Pod", pod.name, namespace=pod.namespace, uid=pod.uid)
            self._recorder.warn(subject, reason=NO_ADDRESS, message=str(error))
            raise

    async def _attach(self, attachment: Attachment, plan: PodPlan | None, netns: NetnsPath) -> Attachment:
        attached = await self._wiring.attach(attachment, plan, netns)
        # There was no link of that name: whoever had it before has lost it, and must not delete this one.
        for key, other in list(self._attachments.items()) if attached.link is not None else ():
            if other.link == attached.link:
                del self._attachments[key]
                self._egress.forget(key)
        self._attachments[attached.key] = attached
        return attached

    async def _connect(self, attachment: Attachment, request: AddRequest) -> None:
        await self._egress.connect(attachment, deadline=request.deadline - REPLY_SECONDS)
        await self._host_ports.publish(attachment, request.ports)

    async def _delete_sandbox(self, key: AttachmentKey, container: AttachmentKey, ended: float | None) -> None:
        attachment = self._attachments.get(key)
        if attachment is None or attachment.container == container.container_id:
            await self._delete(key, ended=ended)
        # Otherwise a new sandbox of the pod has taken its place: a runtime may repeat the DEL of the one before.

    async def _delete_unchanged(self, key: AttachmentKey, attachment: Attachment) -> None:
        if self._attachments.get(key) is attachment:
            await self._delete(key)

    async def _delete_vanished(self, key: AttachmentKey, attachment: Attachment | None) -> None:
        now = self._attachments.get(key)
        if now is None or now is attachment:  # else it was made anew since the kernel was asked
            self._log.info("veth is gone without a DEL; releasing the attachment", container=key.container_id)
            await self._delete(key)

    async def _delete(self, key: AttachmentKey, *, ended: float | None = None) -> None:
        self._egress.forget(key)
        await self._host_ports.withdraw(key)
        attachment = self._attachments.get(key)
        if attachment is not None:
            await self._exclusively_on(attachment.link, lambda: self._detach(key))
        self._source.release(key, ended=ended)
        self._forget_identities(key)

    async def _detach(self, key: AttachmentKey) -> None:
        # Looked up again, as the link may have become another attachment's while this one waited for its turn.
        attachment = self._attachments.get(key)
        if attachment is not None:
            await self._wiring.detach(attachment)
            del self._attachments[key]

    async def _check(self, key: AttachmentKey, container: AttachmentKey, netns: NetnsPath) -> None:
        attachment = self._attachments.get(key)
        if attachment is None:
            raise UnknownAttachmentError(
                f"container {container.container_id} has no attachment {container.ifname} on this node"
            )
        await self._wiring.check(attachment, self._wiring.plan(attachment), netns)
        await self._host_ports.check(key)

    # --- helpers

    async def _exclusively_on(self, link: LinkName | None, work: Callable[[], Awaitable[T]]) -> T:
        """Do the work while nobody else makes or deletes a link of that name."""
        return await (work() if link is None else self._executor.run(link, work))

    async def _present(self) -> frozenset[AttachmentKey]:
        aliases = await self._wiring.aliases()
        return frozenset(alias_key(alias) for alias in aliases if self._source.owns(alias))

    def _forget_identities(self, key: AttachmentKey) -> None:
        for container in [container for container, own in self._identities.items() if own == key]:
            del self._identities[container]
