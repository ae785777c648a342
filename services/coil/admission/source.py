"""Where a webhook server's certificate comes from: the seam between the keeper and the two sources."""

from dataclasses import dataclass
from typing import Protocol

from coil.admission.certificate import KeyPair


@dataclass(frozen=True, slots=True)
class Fetched:
    """What to serve, and the authorities to trust for it, PEM; empty if somebody else tells the API server.

    `wrote`: the source has changed what it read from.
    """

    pair: KeyPair
    bundle: bytes
    wrote: bool = False


class CertificateSource(Protocol):
    async def fetch(self) -> Fetched:
        """The present certificate. Raises CertificateError or ApiError; asked again after a pause."""
        ...
