"""The seam between a pod's attachment and its egress.

`coild.pods.engine` calls it, before the ADD is answered, and never twice at once for one attachment;
`coild.egress.client` implements it, or, with --enable-egress=false, nothing.
"""

from typing import Protocol

from coil.ipam.occupancy import AttachmentKey
from coild.model.attachment import Attachment


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
