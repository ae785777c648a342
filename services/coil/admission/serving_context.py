"""The TLS of a server whose certificate is replaced while it runs.

The listening context never changes; with each handshake it hands over to the context of the newest certificate. So
connections that are open go on undisturbed, the next one sees the new certificate, and a pair that cannot be used
never gets in the way of the one that can. (Loading a pair into a context that has one already would leave the old
one there beside it, when their keys are of different kinds.)
"""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from coil.admission.certificate import CertificateError, KeyPair


class ServingContext:
    """TLS 1.2 and newer, without client certificates. Until the first `load` every handshake fails."""

    def __init__(self) -> None:
        self.context = _new_context()
        self.context.sni_callback = self._hand_over
        self._pair: KeyPair | None = None
        self._newest: ssl.SSLContext | None = None

    @property
    def loaded(self) -> bool:
        """Whether there is a certificate to show."""
        return self._newest is not None

    def load(self, pair: KeyPair) -> bool:
        """Show this certificate from the next handshake on; False if it is the one that is shown already.

        Raises CertificateError when it cannot be used, and goes on with the one before.
        """
        if pair == self._pair:
            return False
        context = _new_context()
        try:
            with _in_memory(pair) as path:
                # A password that fits nothing, or OpenSSL would ask for one on the terminal.
                context.load_cert_chain(path, password="")
        except (ssl.SSLError, ValueError, OSError) as error:
            raise CertificateError(f"the certificate cannot be served: {error}") from error
        self._newest, self._pair = context, pair
        return True

    def _hand_over(self, tls: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> int | None:
        """Called in each handshake, whether the client names a server or not."""
        if self._newest is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        tls.context = self._newest
        return None


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


@contextmanager
def _in_memory(pair: KeyPair) -> Iterator[str]:
    """A path to the pair, since OpenSSL's wrapper reads files only; the key touches no disk."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pair.certificate.rstrip() + b"\n" + pair.key)
        file.flush()
        yield f"/proc/self/fd/{descriptor}"
