"""How to reach an API server and who to be there: what a kubeconfig or a pod's service account comes to."""

import base64
import binascii
import hashlib
import shutil
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Final


class ConfigError(ValueError):
    """The configuration is there, and cannot be used; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """`server` has no slash at its end; `authorization` is the header's value. Paths that are None are not wanted."""

    server: str
    authorization: str = ""
    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    verify: bool = True
    tls_server_name: str = ""
    proxy: str = ""


_LINE_ENDS: Final = dict.fromkeys(map(ord, "\r\n"))
"""`base64 FILE` writes them, and they mean nothing."""


def decode_base64(text: str, *, what: str) -> bytes:
    """The content of a field that has that name. Raises ConfigError."""
    try:
        return base64.b64decode(text.translate(_LINE_ENDS), validate=True)
    except binascii.Error as error:
        raise ConfigError(f"{what} is not base64: {error}") from None


class PrivateFiles:
    """Files for data that OpenSSL reads from files only. The same data is the same file; all go with this object, or
    with the process.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None

    def keep(self, data: bytes) -> Path:
        """Readable by this user only."""
        if self._folder is None:
            self._folder = Path(mkdtemp(prefix="kubeconfig-"))  # mode 0700
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        path = self._folder / hashlib.sha256(data).hexdigest()
        if not path.exists():
            path.write_bytes(data)
        return path


def load_service_account(*, token: Path, authority: Path, environ: Mapping[str, str]) -> ClientConfig:
    """What the kubelet gives to a pod: two files, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT.

    Raises OSError and ConfigError.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    secret = token.read_text().strip()
    if not secret:
        raise ConfigError(f"{token} is empty")
    if not authority.stat().st_size:
        raise ConfigError(f"{authority} is empty")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return ClientConfig(server=server, authorization=f"Bearer {secret}", authority=authority)
