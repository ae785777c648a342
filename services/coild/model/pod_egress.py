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


class EgressRefusedError(Exception):
    """The kernel did not take what the pod is to have; nothing of it is left."""


class PodEgress(Protocol):
    async def connect(self, site: PodSite, *, deadline: float) -> None:
        """Give a pod that has been attached what its annotations and labels ask for.

        `site.netns` is given; `deadline` by the event loop's clock. Idempotent. Raises EgressRefusedError; whatever
        may pass by itself is no failure.
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
