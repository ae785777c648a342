"""The seam between a pod's attachment and its egress: what an ADD tells of the pod before it is answered.

`coild.pods.pod_service` and `coild.pods.chained_service` drive it, in the turn of the attachment;
`coild.egress.client` is behind it, or, with --enable-egress=false, nothing.
"""

from dataclasses import dataclass
from typing import Protocol

from coil.ipam.attachment import AttachmentKey
from coil.kernel.family import IPAddress
from coil.netlink.host import NetnsPath
from coil.podnet.alias import PodAlias
from coild.model.address_source import PodName


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSite:
    """Where a pod's network is.

    `alias` is that of the link at the host's end, by which the pod's namespace is found again; None where the pod's
    interface has no other end. `netns` is the path that this process heard in the ADD; None after a restart. `pod` is
    None where nobody remembers whose the attachment is; its UID, or all but its UID, may be missing. Without
    `addresses` the pod's are those that the API server tells.
    """

    key: AttachmentKey
    pod: PodName | None
    addresses: tuple[IPAddress, ...]
    alias: PodAlias | None = None
    netns: NetnsPath | None = None


class PodEgressError(Exception):
    """The pod cannot be given its egress now, so its ADD fails: it would leave with its own address. The runtime is to
    try again.
    """


class EgressRefusedError(PodEgressError):
    """The kernel refused the pod's tunnels; nothing of them is left."""


class EgressUnresolvedError(PodEgressError):
    """An annotation of the pod names an Egress that is missing, incomplete or invalid, or that nobody could look up."""


class PodUnknownError(PodEgressError):
    """The API server has no such pod on this node, or does not answer: nobody knows whether the pod names an Egress."""


class PodEgress(Protocol):
    async def connect(self, site: PodSite, *, deadline: float) -> None:
        """Give a pod that has been attached what its annotations and labels ask for.

        `site.netns` is given; `deadline` by the event loop's clock. Idempotent. Raises PodEgressError; then the
        pod must not start.
        """
        ...

    def forget(self, key: AttachmentKey) -> None:
        """The attachment is no more. An unknown one is fine. Never waits."""
        ...


class NoEgress:
    """What pods have of egress without it."""

    async def connect(self, site: PodSite, *, deadline: float) -> None:
        pass

    def forget(self, key: AttachmentKey) -> None:
        pass
