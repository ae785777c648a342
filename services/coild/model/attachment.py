"""One pod's attachment to the network, in the words that coild's features share.

    AttachmentKey   which one: a container's interface, or whatever else its address source knows it by
    PodName         whose it is
    AddRequest      what the runtime asks for
    Attachment      what there is
    PodService      what CNI does with it: coild.cni calls, coild.pods implements it
    PodEgress       what it has of egress NAT: coild.pods calls, coild.egress implements it
    PodHostPorts    which ports of the node lead to it: coild.pods calls, coild.hostports implements it

What the kernel says of an attachment is the alias of a link (`coil.podnet.host_link`).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Protocol

from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName
from coil.netlink.error import NetlinkError
from coil.netlink.host import NetnsPath
from coil.podnet.host_link import PodAlias, calico_link_name, random_link_name
from coil.podnet.host_port import PortMapping
from coil.podnet.plan import PodPlan


@dataclass(frozen=True, slots=True)
class PodName:
    """A pod as CNI_ARGS name it. Runtimes do not always pass its UID."""

    namespace: str
    name: str
    uid: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


UNNAMED = PodName("", "")
"""Of a call that names no pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRequest:
    """An ADD as the runtime asks for it.

    `key` names the container. `deadline` is when the caller stops waiting, by the event loop's clock. `network` is the
    name in the network configuration, by which a GC selects attachments. `addresses` are those in the result of the
    plugin before, in its order; empty at the head of a chain. `ports` of the node are to lead to the pod. `arguments`
    are CNI_ARGS, which a runtime may use to say more of the pod.
    """

    key: AttachmentKey
    netns: NetnsPath
    pod: PodName
    addresses: tuple[IPAddress, ...] = ()
    deadline: float = math.inf
    network: str = ""
    ports: tuple[PortMapping, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Holder:
    """Which pod has an address, and since when, as far as it is known."""

    pod: PodName | None
    since: datetime | None


UNKNOWN_HOLDER: Final = Holder(None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A pod that is attached, or about to be.

    `pod` is None where nobody remembers whose the attachment is; its UID, or all but its UID, may be missing.
    `addresses` has at most one of each family; none where only the API server knows them. `alias` is that
    of the link at the host's end, by which the attachment and the pod's namespace are found again; None where the
    pod's interface has no other end on this node. `link` is the name of that link where coild made it.

    The rest is known of what this process attached: `container` (recovered where the alias names it), the path `netns`
    and the name of the `network`, "" for none.
    """

    key: AttachmentKey
    pod: PodName | None
    addresses: tuple[IPAddress, ...]
    alias: PodAlias | None = None
    netns: NetnsPath | None = None
    link: LinkName | None = None
    container: ContainerId | None = None
    network: str = ""

    @classmethod
    def of(
        cls, request: AddRequest, *, key: AttachmentKey, addresses: Iterable[IPAddress], alias: PodAlias | None
    ) -> "Attachment":
        """What is to be made for the request; of each family the first address counts."""
        return cls(
            key=key,
            pod=request.pod,
            addresses=first_of_each_family(addresses),
            alias=alias,
            netns=request.netns,
            container=request.key.container_id,
            network=request.network,
        )

    @property
    def ipv4(self) -> IPv4Address | None:
        return next((address for address in self.addresses if isinstance(address, IPv4Address)), None)

    @property
    def ipv6(self) -> IPv6Address | None:
        return next((address for address in self.addresses if isinstance(address, IPv6Address)), None)

    @property
    def tag(self) -> str:
        """By which the address source recognises its own; see `PodAlias`."""
        return self.alias.tag if self.alias is not None else ""


def alias_key(alias: PodAlias) -> AttachmentKey:
    """The attachment that a link's alias names."""
    return AttachmentKey(ContainerId(alias.container_id), alias.ifname)


def host_link_name(attachment: Attachment, *, compat_calico: bool = False) -> LinkName:
    """The name of the host's end of the attachment's veth: that which it has, or else the one it is to get.

    Derived, not drawn: an ADD that is repeated after a crash meets its own link.
    """
    key, pod = attachment.key, attachment.pod
    if attachment.link is not None:
        return attachment.link
    if compat_calico and pod is not None:
        return calico_link_name(namespace=pod.namespace, pod=pod.name)
    return random_link_name(sha256(f"{key.container_id}/{key.ifname}".encode()).digest()[:4])


def first_of_each_family(addresses: Iterable[IPAddress]) -> tuple[IPAddress, ...]:
    """In their order: what the API server will report as the pod's addresses."""
    first: dict[Family, IPAddress] = {}
    for address in addresses:
        first.setdefault(Family.of(address), address)
    return tuple(first.values())


class AddressUnavailableError(Exception):
    """No address now; the message says from where and why. Trying again later may help."""


class NoSuchNamespaceError(Exception):
    """The API server has no namespace of the pod's name, so nobody can say where its addresses come from."""


class InvalidPodError(ValueError):
    """The pod cannot be wired as it is: a name that the kernel does not take, a family without a gateway, an MTU that
    is too small. Trying again does not help.
    """


class HostPortTakenError(Exception):
    """A port of the node that is to lead to the pod leads to another one. Trying again helps once that one is gone."""


class UnknownAttachmentError(Exception):
    """CHECK of something that was never added, or has been deleted."""


class InterfaceUnknownError(NetlinkError):
    """It is not known yet which interface of the node has the pod's address. Trying again later may help."""


class PodService(Protocol):
    """The operations of CNI on pods. `coild.pods.engine.PodEngine` implements them, `coild.cni.service` calls them."""

    async def add(self, request: AddRequest) -> PodPlan | None:
        """Attach the pod; return what was made of its interface, None where another plugin made it.

        Idempotent: the same container and interface get the same addresses again. Raises the errors above, PortError,
        PodEgressError, NetlinkError, NftError or ApiError; then nothing is left. A cancelled caller leaves the
        operation to complete.
        """
        ...

    async def delete(self, key: AttachmentKey, *, ended: float | None = None) -> None:
        """Detach; an unknown attachment is fine. On return the addresses are free. Raises NetlinkError or NftError.

        They cool down from when the attachment has `ended`, by `time.monotonic`; None: now.
        """
        ...

    async def check(self, key: AttachmentKey, netns: NetnsPath, pod: PodName = UNNAMED) -> None:
        """Return if everything that the ADD made is still there. `pod` may lack any of its parts.

        Raises UnknownAttachmentError, InterfaceUnknownError where nobody can tell, or NetlinkError naming what is
        missing.
        """
        ...

    async def collect_garbage(self, network: str, valid: frozenset[AttachmentKey]) -> None:
        """Detach what was added to the network and is not among `valid`, which is all that the runtime knows of.

        Leaves alone what an earlier process added, as nothing says to which network, and what an operation is under
        way for. Goes on after an error. Raises NetlinkError or NftError, the last there was.
        """
        ...


class PodEgressError(Exception):
    """The pod cannot be given its egress now, so its ADD fails: it would leave with its own address. The runtime is to
    try again.
    """


class EgressRefusedError(PodEgressError):
    """The kernel refused the pod's tunnels; nothing of them is left."""


class EgressUnresolvedError(PodEgressError):
    """An annotation of the pod names an Egress that is missing, incomplete or invalid, or that nobody could look up; or
    nobody tells whether EIP policies select the pod.
    """


class PodUnknownError(PodEgressError):
    """The API server has no such pod on this node, or does not answer: nobody knows whether the pod names an Egress."""


class PodEgress(Protocol):
    """`coild.pods.engine` calls it before the ADD is answered, and never twice at once for one attachment.

    `coild.egress.client` implements it, or, with --enable-egress=false, `NoEgress`; for floating addresses
    `coild.eip.agent_client`; and for several kinds of egress `AllEgress`.
    """

    async def connect(self, attachment: Attachment, *, deadline: float) -> None:
        """Give a pod that has been attached what its annotations and labels ask for.

        Its `netns` is given; `deadline` by the event loop's clock. Idempotent. Raises PodEgressError; then the
        pod must not start.
        """
        ...

    def forget(self, key: AttachmentKey) -> None:
        """The attachment is no more. An unknown one is fine. Never waits."""
        ...


class NoEgress:
    """What pods have of egress without it."""

    async def connect(self, attachment: Attachment, *, deadline: float) -> None:
        pass

    def forget(self, key: AttachmentKey) -> None:
        pass


class AllEgress:
    """Several kinds of egress, one after the other."""

    def __init__(self, *kinds: PodEgress) -> None:
        self._kinds = kinds

    async def connect(self, attachment: Attachment, *, deadline: float) -> None:
        for kind in self._kinds:
            await kind.connect(attachment, deadline=deadline)

    def forget(self, key: AttachmentKey) -> None:
        for kind in self._kinds:
            kind.forget(key)


class PodHostPorts(Protocol):
    """`coild.pods.engine` calls it, never twice at once for one attachment.

    `coild.hostports.host_ports` implements it, or `NoHostPorts` where another plugin wires the pods.
    """

    async def publish(self, attachment: Attachment, mappings: tuple[PortMapping, ...]) -> None:
        """Have these ports of the node lead to the attached pod, and no others. Idempotent.

        Raises HostPortTakenError, and then nothing has changed; NetlinkError or NftError, and then none is the pod's.
        """
        ...

    async def withdraw(self, key: AttachmentKey) -> None:
        """No port leads to the pod any more, on return. An unknown attachment is fine. Raises NftError; then some may,
        and the call is to be repeated before the pod's addresses are given away.
        """
        ...

    async def check(self, key: AttachmentKey) -> None:
        """Return if the kernel has what was published. Raises PodCheckError, or NftError where that cannot be seen."""
        ...


class NoHostPorts:
    """Where the plugin that wires pods sees to their host ports, too."""

    async def publish(self, attachment: Attachment, mappings: tuple[PortMapping, ...]) -> None:
        pass

    async def withdraw(self, key: AttachmentKey) -> None:
        pass

    async def check(self, key: AttachmentKey) -> None:
        pass


class RefusedHostPorts(NoHostPorts):
    """Where no port of the node can lead to a pod: one that asks for that is told, rather than left without it."""

    async def publish(self, attachment: Attachment, mappings: tuple[PortMapping, ...]) -> None:
        """See `PodHostPorts`. Raises InvalidPodError."""
        if mappings:
            asked = ", ".join(str(mapping.host_port) for mapping in mappings)
            raise InvalidPodError(f"host ports are not possible here, as the node does not reach its pods: {asked}")
