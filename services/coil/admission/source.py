"""Where a webhook server's certificate comes from: the seam between the keeper and the two sources, and the simpler of
them.

That is a folder which somebody else fills, as cert-manager and a mounted Secret do: `tls.crt` and `tls.key`, and
`ca.crt` if the webhook configurations are to be told whom to trust. Files are replaced one after the other, so
certificate and key may not match for a moment: such a pair is an error now, and no longer at the next look. The other
source is `coil.admission.self_managed`.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from coil.admission.certificate import CertificateError, KeyPair, read_server, split_bundle


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


class CertificateFolder:
    """A CertificateSource."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def fetch(self) -> Fetched:
        """What the files say now. Raises CertificateError."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> Fetched:
        pair = KeyPair(self._content("tls.crt"), self._content("tls.key"))
        bundle = self._content("ca.crt") if (self._folder / "ca.crt").exists() else b""
        try:
            read_server(pair)
            if bundle:
                split_bundle(bundle)
        except CertificateError as error:
            raise CertificateError(f"the certificate in {self._folder} is not usable: {error}") from error
        return Fetched(pair, bundle)

    def _content(self, name: str) -> bytes:
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            raise CertificateError(f"{self._folder / name} cannot be read: {error.strerror}") from error
