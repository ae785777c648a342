"""Where the API server is, and how this process proves who it is: the first step of every request.

Everything is read from files, and the files change: the kubelet replaces a projected token every hour or
less, and a cluster's CA is rotated one day. So they are read again when they may be stale, and at once
when the server refuses what we have. Files that cannot be read at such a moment leave the old credentials in use:
they may still be good, and if they are not the server will say so.
"""

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from coil.kube.client_config import ClientConfig, load_service_account

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_Fingerprint: TypeAlias = tuple[str, int, int]  # path, time of modification in ns, size

REREAD_SECONDS = 60.0  # a token is replaced at 80 % of its life, at the latest 2 minutes before it ends


class AccessError(Exception):
    """There is no usable configuration to reach an API server with. The message says what is missing."""


class Access:
    """The connection parameters of one API server, kept fresh. `load` is `kubeconfig()`'s or `in_cluster()`'s."""

    def __init__(
        self, load: Callable[[], Awaitable[ClientConfig]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._load = load
        self._clock = clock
        self._read_at = 0.0
        self._tls_files: list[_Fingerprint] = []
        self.config = ClientConfig(server="")
        self.tls_generation = 0  # grows whenever CA, certificate or key are found to have changed
        self.trouble = ""  # why the last re-read failed, for the message of a refusal

    @classmethod
    def kubeconfig(cls, *paths: Path, context: str = "", clock: Callable[[], float] = time.monotonic) -> "Access":
        """The current context of the kubeconfigs at `paths`, which are merged, or the one of that name.

        Certificates and keys embedded in them are written to private temporary files until the process ends.
        """
        from coil.kube.kubeconfig import Kubeconfig  # pods have a service account, and pay for no library

        kubeconfig, named = Kubeconfig(paths, context), ", ".join(map(str, paths))

        async def load() -> ClientConfig:
            try:
                return await kubeconfig.load()
            except OSError as error:
                file = error.filename or named
                raise AccessError(f"the kubeconfig {named} cannot be read: {file}: {error.strerror}") from error
            except ValueError as error:
                raise AccessError(f"the kubeconfig {named} cannot be used: {error}") from error

        return cls(load, clock=clock)

    @classmethod
    def in_cluster(
        cls,
        *,
        directory: Path = SERVICE_ACCOUNT,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> "Access":
        """What the kubelet gives to a pod: `token` and `ca.crt` in `directory`, KUBERNETES_SERVICE_HOST/PORT."""

        async def load() -> ClientConfig:
            try:
                return load_service_account(token=directory / "token", authority=directory / "ca.crt", environ=environ)
            except (OSError, ValueError) as error:
                raise AccessError(f"no kubeconfig given and no service account usable: {error}") from error

        return cls(load, clock=clock)

    @property
    def authorization(self) -> str:
        """The value of the Authorization header, or "" where a client certificate is all there is."""
        return self.config.authorization

    async def read(self) -> None:
        """Read everything now. Raises AccessError and keeps what there was."""
        self._read_at = self._clock()  # before the wait: one reader is enough
        fresh = await self._load()
        named = (fresh.authority, fresh.certificate, fresh.key)
        try:
            tls_files = [_fingerprint(file) for file in named if file]
        except OSError as error:
            raise AccessError(f"a file of the TLS configuration cannot be read: {error}") from error
        self.config = fresh
        self.trouble = ""
        if tls_files != self._tls_files:
            self._tls_files = tls_files
            self.tls_generation += 1

    async def refresh(self) -> None:
        """Read again if the last time is too long ago."""
        if self._clock() - self._read_at >= REREAD_SECONDS:
            await self._reread()

    async def renew(self, refused: str) -> bool:
        """Read again because the server refused the header `refused`. True if there is another one to try."""
        if self.authorization == refused:  # otherwise another request has already been here
            await self._reread()
        return self.authorization != refused

    async def _reread(self) -> None:
        try:
            await self.read()
        except AccessError as error:
            self.trouble = str(error)


def _fingerprint(file: Path) -> _Fingerprint:
    found = file.stat()
    return (str(file), found.st_mtime_ns, found.st_size)
