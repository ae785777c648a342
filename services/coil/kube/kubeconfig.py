"""How to reach an API server and who to be there, read from a kubeconfig or from a pod's service account.

Supported is what client-go reads for the current context (k8s.io/client-go, tools/clientcmd/api/v1/types.go): server,
authority, client certificate, token, exec plugin, user and password, proxy; not `auth-provider`, which exec plugins
have replaced, nor to act as another user. What is not supported is refused, and not passed over: kubectl would do it.
Each call reads everything anew, because the files change while a process runs.
"""

import asyncio
import base64
import binascii
import hashlib
import os
import shutil
import weakref
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from coil.kube.proxy import check_proxy

EXEC_SECONDS: Final = 60.0
"""How long an exec plugin may take."""


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


class _Cluster(Struct, frozen=True, kw_only=True, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _Variable(Struct, frozen=True):
    name: str
    value: str


class _Exec(Struct, frozen=True, kw_only=True, rename="camel"):
    api_version: str
    command: str
    args: tuple[str, ...] | None = None
    env: tuple[_Variable, ...] | None = None
    install_hint: str = ""
    interactive_mode: str = ""
    provide_cluster_info: bool = False


class _User(Struct, frozen=True, kw_only=True, rename="kebab"):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    exec: _Exec | None = None
    auth_provider: dict[str, object] | None = None
    impersonate: str = msgspec.field(default="", name="as")


class _Context(Struct, frozen=True, kw_only=True):
    cluster: str = ""
    user: str = ""


class _NamedCluster(Struct, frozen=True):
    name: str
    cluster: _Cluster


class _NamedUser(Struct, frozen=True):
    name: str
    user: _User | None = None


class _NamedContext(Struct, frozen=True):
    name: str
    context: _Context


class _Kubeconfig(Struct, frozen=True, kw_only=True, rename="kebab"):
    current_context: str = ""
    clusters: tuple[_NamedCluster, ...] | None = None
    users: tuple[_NamedUser, ...] | None = None
    contexts: tuple[_NamedContext, ...] | None = None


class _Credential(Struct, frozen=True, kw_only=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredential(Struct, frozen=True, kw_only=True):
    """client.authentication.k8s.io, v1 and v1beta1."""

    status: _Credential


_Named = TypeVar("_Named", _NamedCluster, _NamedUser, _NamedContext)


async def load_kubeconfig(path: Path, files: PrivateFiles, *, context: str = "") -> ClientConfig:
    """The current context of the file at `path`, or the one of that name; names of files are relative to its folder.

    Runs the user's exec plugin, if there is one; cancelled, it ends the plugin. Raises OSError and ValueError.
    """
    document = msgspec.yaml.decode(path.read_bytes())  # noqa: ASYNC240 - a small local file
    config = msgspec.convert(_without_nulls(document), _Kubeconfig)
    if not (context or config.current_context):
        raise ConfigError("it names no current-context")
    chosen = _find("context", config.contexts, context or config.current_context).context
    cluster = _find("cluster", config.clusters, chosen.cluster).cluster
    user = (_find("user", config.users, chosen.user).user if chosen.user else None) or _User()
    if not cluster.server:
        raise ConfigError(f"the cluster {chosen.cluster!r} has no server")
    folder = path.parent

    def file(name: str, data: str) -> Path | None:
        """Embedded data goes before the name of a file."""
        if data:
            return files.keep(base64.b64decode(data.translate(_LINE_ENDS), validate=True))
        return folder / name if name else None

    found = ClientConfig(
        server=_server_url(cluster.server),
        verify=not cluster.insecure_skip_tls_verify,
        tls_server_name=cluster.tls_server_name,
        proxy=check_proxy(cluster.proxy_url) if cluster.proxy_url else "",
    )
    if not found.server.startswith("https:"):
        return found  # nobody is told on the way who this is
    try:
        found = replace(
            found,
            authority=file(cluster.certificate_authority, cluster.certificate_authority_data),
            certificate=file(user.client_certificate, user.client_certificate_data),
            key=file(user.client_key, user.client_key_data),
        )
    except binascii.Error as error:
        raise ConfigError(f"embedded data is not base64: {error}") from None
    return await _authenticate(found, user, folder, files)


_LINE_ENDS: Final = dict.fromkeys(map(ord, "\r\n"))
"""`base64 FILE` writes them, and they mean nothing."""


def _without_nulls(value: object) -> object:
    """A field that is null is one that is not there."""
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [*map(_without_nulls, value)] if isinstance(value, list) else value


def _server_url(server: str) -> str:
    """Without a scheme it is plain HTTP, as for `kubectl proxy`. Raises ConfigError."""
    if "://" in server:
        return server.rstrip("/")
    if urlsplit(f"http://{server}").path.strip("/"):
        raise ConfigError(f"the server {server!r} is neither a URL nor a host with a port")
    return f"http://{server.rstrip('/')}"


async def _authenticate(found: ClientConfig, user: _User, folder: Path, files: PrivateFiles) -> ClientConfig:
    # In the order of client-go: a token file goes before a token, as it may change.
    if user.impersonate:
        raise ConfigError("to act as another user (as) is not supported: give this user the rights")
    if (user.token or user.token_file) and (user.username or user.password):
        raise ConfigError("the user has both a token and a password: remove one of them")
    if user.exec is not None and not (user.token or user.token_file or user.username):
        credential = await _run_plugin(user.exec, folder)
        if credential.client_certificate_data:
            found = replace(
                found,
                certificate=files.keep(credential.client_certificate_data.encode()),
                key=files.keep(credential.client_key_data.encode()),
            )
        return replace(found, authorization=f"Bearer {credential.token}" if credential.token else "")
    if user.token_file:
        return replace(found, authorization=f"Bearer {(folder / user.token_file).read_text().strip()}")
    if user.token:
        return replace(found, authorization=f"Bearer {user.token}")
    if user.username and user.password:
        pair = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
        return replace(found, authorization=f"Basic {pair}")
    if user.auth_provider is not None:
        raise ConfigError("auth-provider is not supported: use an exec plugin")
    return found


async def _run_plugin(plugin: _Exec, folder: Path) -> _Credential:
    """What the plugin prints. A command with a slash is relative to the kubeconfig's folder, as for kubectl."""
    if plugin.interactive_mode == "Always":
        raise ConfigError(f"the exec plugin {plugin.command} wants a terminal (interactiveMode: Always)")
    if plugin.provide_cluster_info:
        raise ConfigError(
            f"the exec plugin {plugin.command} wants to know the cluster (provideClusterInfo): not supported"
        )
    command = str((folder / plugin.command).absolute()) if "/" in plugin.command else plugin.command
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    environment = {
        **os.environ,
        **{variable.name: variable.value for variable in plugin.env or ()},
        "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode(),
    }
    try:
        process = await asyncio.create_subprocess_exec(
            command, *(plugin.args or ()), env=environment, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
        )
    except FileNotFoundError:
        raise ConfigError(f"there is no exec plugin {command}. {plugin.install_hint}".rstrip()) from None
    try:
        async with asyncio.timeout(EXEC_SECONDS):
            output, complaint = await process.communicate()
    except TimeoutError:
        raise ConfigError(f"the exec plugin {command} did not answer within {EXEC_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        reason = complaint.decode(errors="replace").strip()
        raise ConfigError(f"the exec plugin {command} failed with exit code {process.returncode}: {reason}")
    credential = msgspec.json.decode(output, type=_ExecCredential).status
    if not credential.token and not (credential.client_certificate_data and credential.client_key_data):
        raise ConfigError(f"the exec plugin {command} gave neither a token nor a certificate with its key")
    return credential


def _find(what: str, entries: Iterable[_Named] | None, name: str) -> _Named:
    for entry in entries or ():
        if entry.name == name:
            return entry
    raise ConfigError(f"there is no {what} {name!r}")


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
