"""The seam for where pods' addresses come from, and how pods with such addresses are wired.

    coild.cni ─► coild.pods.engine ─► AddressSource   whose address is whose
                                  └─► its PodWiring   how the pod's interface comes to be

One process has one source. Address pools are one (`coild.addresses.pool_source`, wired with a veth by
`coild.pods.veth`), a node's interfaces in AWS another (`coild.eni.source`), ports in OpenStack's Neutron a third
(`coild.neutron.source`); behind another plugin, which gave the pod its addresses and wired it, there is
`coild.addresses.chained`. The engine knows none of them: whatever tells sources
apart is said here. A new source passes the contract suite in `tests/coild/pods/source_contract.py`, and the engine
stays as it is.

What a source owns:

- **its addresses**: `acquire`, `revoke`, `release`, `held`, `holding`, `collect`;
- **how its pods are recognised after a crash**: the tag in the alias of a pod's link (`owns`), and which attachment a
  container is (`identify`);
- **its wiring**: what is made for each pod, and what it needs of the node (rules, sysctls, routes, translation), or
  nothing where another plugin wired the pod;
- **what people see of it**: its `metrics`. What its ledger looks like on the inspection page is between its part of
  coild's start and `coil.page`.

The engine calls in this order, for one attachment at a time, never two at once:

    start   wiring.prepare ─► wiring.recover (which calls source.recover) ─► wiring.restore
    ADD     identify ─► acquire ─► wiring.plan ─► wiring.attach         revoke or release if a later step fails
            identify ─► wiring.plan ─► wiring.check                     if it was attached before
    DEL     wiring.detach ─► release      in this order, so that no two pods have an address
    sweep   wiring.prepare ─► wiring.restore ─► wiring.aliases ─► collect

A source keeps its own ledger and asks its own back end; only its wiring touches a link. No call holds a lock while it
waits, so a back end that is slow for one pod does not delay another.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar

from prometheus_client.registry import Collector

from coil.ipam.occupancy import AttachmentKey
from coil.kernel.family import IPAddress
from coil.netlink.host import NetnsPath
from coil.podnet.host_link import PodAlias
from coil.podnet.plan import PodPlan
from coild.model.attachment import AddRequest, Attachment, PodName

P = TypeVar("P", bound=PodPlan | None)

Exclusively: TypeAlias = Callable[[AttachmentKey, Callable[[], Awaitable[None]]], Awaitable[None]]
"""Runs the work while no operation on the attachment is under way; not at all if the attachment has changed since."""

Ended: TypeAlias = Mapping[AttachmentKey, float]
"""When attachments have ended that were deleted while no process was there to see it, by `time.monotonic`. It may have
some that nobody knows.
"""

NONE_ENDED: Ended = MappingProxyType({})


class AddressSource(Protocol):
    """See the module's docstring for the order of calls."""

    @property
    def wiring(self) -> "PodWiring[Any]":
        """How pods with addresses of this source are wired."""

    def owns(self, alias: PodAlias) -> bool:
        """Whether a link with this alias is a pod's of this source."""

    async def identify(self, key: AttachmentKey, pod: PodName, *, deadline: float) -> AttachmentKey:
        """The key under which the container's interface is kept: that of its alias, so that the next process finds it.

        `key` itself for a source whose aliases name containers. `deadline` by the event loop's clock. Raises
        `coild.model.attachment.PodUnknownError` where the pod has to be looked up and cannot be.
        """

    def recognizes(self, tag: str, address: IPAddress) -> bool:
        """Whether the address is one that this source may give, or has given, to pods with that tag."""

    async def recover(self, found: Sequence[Attachment], ended: Ended = NONE_ENDED) -> None:
        """Take the kernel's attachments into the ledger; of two that claim one address, the first has it.

        Addresses that were held and are not found cool down from when their attachment has `ended`, or else from now.
        Called once, before any verb that changes the ledger.
        """

    def pod_of(self, key: AttachmentKey) -> PodName | None:
        """Whose a recovered attachment is, as far as it is known."""

    def holding(self, key: AttachmentKey) -> tuple[IPAddress, ...]:
        """The addresses that the ledger has for the attachment, and for no other; empty for an unknown key."""

    async def acquire(self, key: AttachmentKey, request: AddRequest, *, timeout: float) -> Attachment:
        """Addresses for the attachment, within `timeout` seconds, as the attachment that is to be made.

        Idempotent: a known key gets what it holds. Raises AddressUnavailableError, NoSuchNamespaceError or ApiError;
        where addresses are those of ports, InvalidPodError, PodUnknownError or PortError, too. Cancelled, it has
        acquired nothing.
        """

    def revoke(self, key: AttachmentKey) -> None:
        """Undo an `acquire` whose addresses no pod has had. An unknown key is fine."""

    def release(self, key: AttachmentKey, *, ended: float | None = None) -> None:
        """Take the attachment out of the ledger; an unknown key is fine. What follows happens in the background.

        Its addresses cool down from when it has `ended`, by `time.monotonic`; None: now.
        """

    def held(self) -> frozenset[AttachmentKey]:
        """The attachments in the ledger."""

    async def collect(self) -> None:
        """Periodically: give back what serves no attachment. Raises ApiError."""

    def metrics(self) -> Collection[Collector]:
        """What Prometheus is told of it: the same collectors at each call, registered by coild's start."""


class PodWiring(Protocol[P]):
    """What is done in the kernel for a pod, and for the node that its pods are on. Errors are NetlinkErrors.

    `P` is what it plans: a PodPlan, or None where another plugin wires the pods.
    """

    async def prepare(self) -> None:
        """What the pods need of the node, whoever they are. Idempotent; called at start and with every sweep."""

    def plan(self, attachment: Attachment) -> P:
        """What is to exist for the pod. Pure. Raises InvalidPodError.

        The name of the host's link is the attachment's, or chosen here if it has none yet: the same for the same
        attachment, in the next process, too.
        """

    async def attach(self, attachment: Attachment, plan: P, netns: NetnsPath) -> Attachment:
        """Make it, all or nothing, and return the attachment as it is now: without its alias, for one, where the
        interface turned out to have no end on this node. Where pods are plugged into ports, it raises PortErrors, too.
        """

    async def check(self, attachment: Attachment, plan: P, netns: NetnsPath) -> None:
        """Return if everything is there. Raises PodCheckError naming what is not; other errors say nothing about it."""

    async def detach(self, attachment: Attachment) -> None:
        """Take it away; on return nothing leads to the pod's addresses any more. Idempotent."""

    async def aliases(self) -> frozenset[PodAlias]:
        """The aliases of the links that are there."""

    async def recover(self, source: AddressSource, ended: Ended = NONE_ENDED) -> list[Attachment]:
        """What earlier processes attached, after the source has taken it into its ledger. Once, at start."""

    async def restore(self, attachments: Collection[Attachment], exclusively: Exclusively) -> None:
        """Put back what others removed. The attachments have those of their addresses that the ledger bears out.

        Goes on after an error that concerns one pod. Raises NetlinkError where the kernel cannot be read.
        """
