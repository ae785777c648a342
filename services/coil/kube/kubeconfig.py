"""Kubeconfigs, read by kubernetes-asyncio as client-go reads them (tools/clientcmd), for every program that is given
one.

Its loader chooses the context and how to prove who the user is. What it does otherwise than kubectl is put right
around it: the file's content before it sees it (fields that are null, several files, servers without a scheme, line
ends in base64, the names of files, what goes before what), and after that the programs and providers that give
credentials (`coil.kube.exec_plugin`, `coil.kube.oidc`). What is not supported is refused, and not passed over: kubectl
would do it. Nothing is written, and each call reads everything anew, because the files change while a process runs.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from coil.kube.client_config import ClientConfig, ConfigError, PrivateFiles, decode_base64
from coil.kube.exec_plugin import ExecPlugin, run_exec_plugin, run_program
from coil.kube.light_import import without_models
from coil.kube.oidc import OidcTokens
from coil.kube.proxy import check_proxy

with without_models():
    from kubernetes_asyncio.config import ConfigException
    from kubernetes_asyncio.config.kube_config import ConfigNode, KubeConfigLoader

_KINDS: Final = {"contexts": "context", "clusters": "cluster", "users": "user"}
_FILES: Final = ("certificate-authority", "client-certificate", "client-key")
"""Each may be embedded instead, in a field that ends in -data."""
_FLAG: Final = "insecure-skip-tls-verify"
_CLUSTER_TEXTS: Final = (
    "server",
    "certificate-authority",
    "certificate-authority-data",
    "tls-server-name",
    "proxy-url",
)
_USER_TEXTS: Final = (
    *("client-certificate", "client-certificate-data", "client-key", "client-key-data"),
    *("token", "tokenFile", "username", "password", "as"),
)


@dataclass(slots=True)
class Kubeconfig:
    """Of several files, the first one that has an entry, or names the current context, is right.

    Embedded certificates and keys are private files for as long as this object lives.
    """

    paths: Sequence[Path]
    context: str = ""
    """The current one, unless it is given."""
    _files: PrivateFiles = field(default_factory=PrivateFiles)
    _oidc: OidcTokens = field(default_factory=OidcTokens)

    async def load(self) -> ClientConfig:
        """Names of files are relative to the folder of the file that has them.

        Runs the user's exec plugin, if there is one; cancelled, it ends the plugin. Raises OSError and ValueError.
        """
        found = SimpleNamespace(
            host="",
            api_key={},
            ssl_ca_cert="",
            cert_file="",
            key_file="",
            verify_ssl=True,
            tls_server_name="",
            proxy="",
        )
        try:
            await _Loader(_merge(self.paths), self.context, self._files, self._oidc).load_and_set(found)
        except ConfigException as error:
            raise ConfigError(str(error)) from None
        return ClientConfig(
            server=found.host,
            authorization=found.api_key.get("BearerToken", ""),
            authority=_path(found.ssl_ca_cert),
            certificate=_path(found.cert_file),
            key=_path(found.key_file),
            verify=found.verify_ssl,
            tls_server_name=found.tls_server_name,
            proxy=check_proxy(found.proxy) if found.proxy else "",
        )


class _Loader(KubeConfigLoader):
    """The library's, of one context, with the credentials that it cannot get by itself."""

    _cluster: ConfigNode  # type: ignore[assignment]
    _current_context: ConfigNode  # type: ignore[assignment]
    _user: ConfigNode | None
    cert_file: str
    key_file: str
    token: str

    def __init__(self, config: ConfigNode, context: str, files: PrivateFiles, oidc: OidcTokens) -> None:
        context = context or str(config["current-context"])
        if not context:
            raise ConfigError("it names no current-context")
        if context not in (entry["name"] for entry in config.value["contexts"]):
            raise ConfigError(f"there is no context {context!r}")
        super().__init__(config, active_context=context)
        self._files, self._oidc = files, oidc
        self._identity = self._find_user()
        self._cluster.value = cluster = self._read_cluster()
        is_verified = cluster["server"].startswith("https:")
        # Without TLS nobody is told on the way who this is.
        self._identity.value = self._with_files(self._choose_authentication()) if is_verified else {}
        provider = self._identity.value.get("auth-provider", {})
        self.provider = provider.get("name")
        # Not a method of this object, which would then outlive its use, and with it the private files.
        self._get_google_credentials = partial(_run_gcloud, provider.get("config", {}))

    def _find_user(self) -> ConfigNode:
        """The library's `_user`, which is None for a context without one, and for a name that no user has."""
        name = self._current_context["context"].safe_get("user")
        if name and self._user is None:
            raise ConfigError(f"there is no user {name!r}")
        if self._user is None:
            self._user = ConfigNode("user", {}, self._cluster.path)
        _check_fields(self._user, texts=_USER_TEXTS)
        return self._user

    def _read_cluster(self) -> dict[str, Any]:
        _check_fields(self._cluster, texts=_CLUSTER_TEXTS, flags=(_FLAG,))
        fields = self._with_files(self._cluster)
        if "server" not in fields:
            raise ConfigError(f"the cluster {self._current_context['context']['cluster']!r} has no server")
        return {**fields, "server": _server_url(fields["server"])}

    # --- before the library looks at it

    def _with_files(self, section: ConfigNode) -> dict[str, Any]:
        """Its fields, with names of files that are absolute, also for what is embedded, which goes before."""
        fields = {name: value for name, value in section.value.items() if value != ""}
        for name in _FILES:
            if data := fields.pop(f"{name}-data", None):
                fields[name] = str(self._files.keep(decode_base64(data, what=f"{name}-data")))
            elif name in fields:
                fields[name] = str(_folder(section) / fields[name])
        return fields

    def _choose_authentication(self) -> ConfigNode:
        """The user with one way to prove who it is: the one that client-go would take."""
        user = self._identity
        fields = {name: value for name, value in user.value.items() if value != ""}
        if "as" in fields:
            raise ConfigError("to act as another user (as) is not supported: give this user the rights")
        has_token, has_password = (
            bool(fields.keys() & {"token", "tokenFile"}),
            bool(fields.keys() & {"username", "password"}),
        )
        if has_token and has_password:
            raise ConfigError("the user has both a token and a password: remove one of them")
        if "exec" in fields and "auth-provider" in fields:
            raise ConfigError("the user has both an exec plugin and an auth-provider: remove one of them")
        if name := fields.pop("tokenFile", ""):
            fields["token"] = (_folder(user) / name).read_text().strip()  # before a token, as it may change
        if has_token or "username" in fields:
            fields.pop("exec", None)
            fields.pop("auth-provider", None)
        if provider := fields.get("auth-provider"):
            _check_provider(provider)
        return ConfigNode(user.name, fields, user.path)

    # --- while it does

    async def load_from_exec_plugin(self) -> bool:
        plugin = msgspec.convert(self._identity.value["exec"], ExecPlugin)
        credential = await run_exec_plugin(plugin, _folder(self._identity))
        if credential.client_certificate_data:
            self.cert_file = str(self._files.keep(credential.client_certificate_data.encode()))
            self.key_file = str(self._files.keep(credential.client_key_data.encode()))
        if credential.token:
            self.token = f"Bearer {credential.token}"
        return True

    async def _load_oid_token(self) -> str:
        settings = self._identity.value["auth-provider"].get("config", {})
        self.token = f"Bearer {await self._oidc.find(settings, _folder(self._identity))}"
        return self.token


class _GcloudCredential(msgspec.Struct, frozen=True):
    access_token: str
    token_expiry: str = ""


class _GcloudAnswer(msgspec.Struct, frozen=True):
    """Of `gcloud config config-helper --format=json`."""

    credential: _GcloudCredential


async def _run_gcloud(settings: Mapping[str, str]) -> SimpleNamespace:
    if "cmd-path" not in settings:
        raise ConfigError("the access-token of GCP has ended, and no cmd-path gives another: use an exec plugin")
    argv = [settings["cmd-path"], *shlex.split(settings.get("cmd-args", ""))]
    output = await run_program(argv, what=f"program {argv[0]} of the auth-provider gcp", environment={})
    credential = msgspec.json.decode(output, type=_GcloudAnswer).credential
    return SimpleNamespace(token=credential.access_token, expiry=credential.token_expiry)


def _merge(paths: Sequence[Path]) -> ConfigNode:
    """As the library does it, but for the current context, of which it takes the last one."""
    merged: dict[str, Any] = {"current-context": "", **{kind: [] for kind in _KINDS}}
    for path in paths:
        document = _plain(msgspec.yaml.decode(path.read_bytes()))
        if not isinstance(document, dict):
            raise ConfigError(f"{path} is no kubeconfig")
        if not isinstance(current := document.get("current-context", ""), str):
            raise ConfigError("current-context is no text")
        merged["current-context"] = merged["current-context"] or current
        for kind in _KINDS:
            earlier = {entry["name"] for entry in merged[kind]}
            entries = _entries(document, kind)
            merged[kind] += [ConfigNode(kind, each, str(path)) for each in entries if each["name"] not in earlier]
    return ConfigNode("kubeconfig", merged)


def _entries(document: dict[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    entries = document.get(kind, [])
    if not isinstance(entries, list):
        raise ConfigError(f"{kind} is no list")
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise ConfigError(f"{kind} has an entry without a name")
        content = entry.get(_KINDS[kind], {})
        if not isinstance(content, dict):
            raise ConfigError(f"{entry['name']!r} in {kind} is no {_KINDS[kind]}")
        if not isinstance(content.get("auth-provider", {}), dict):
            raise ConfigError(f"auth-provider of {entry['name']!r} has no name and config")
        yield {"name": entry["name"], _KINDS[kind]: content}


def _plain(value: object) -> object:
    """A field that is null is one that is not there, and a time that YAML has understood is a text again."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items() if part is not None}
    if isinstance(value, datetime):
        return value.isoformat()
    return [*map(_plain, value)] if isinstance(value, list) else value


def _check_fields(section: ConfigNode, *, texts: Sequence[str], flags: Sequence[str] = ()) -> None:
    """Raises ConfigError: the library would use them as they are."""
    for types, names in ((str, texts), (bool, flags)):
        for name in names:
            if not isinstance(section.value.get(name, types()), types):
                raise ConfigError(f"{name} is no {'text' if types is str else 'boolean'}")


def _check_provider(provider: dict[str, Any]) -> None:
    name, settings = provider.get("name"), provider.get("config", {})
    if name not in ("gcp", "oidc"):
        raise ConfigError(f"the auth-provider {name} is not supported: use an exec plugin")
    if not isinstance(settings, dict) or not all(isinstance(value, str) for value in settings.values()):
        raise ConfigError(f"the config of the auth-provider {name} is no object of texts")


def _server_url(server: str) -> str:
    """Without a scheme it is plain HTTP, as for `kubectl proxy`. Raises ConfigError."""
    if "://" in server:
        return server.rstrip("/")
    if urlsplit(f"http://{server}").path.strip("/"):
        raise ConfigError(f"the server {server!r} is neither a URL nor a host with a port")
    return f"http://{server.rstrip('/')}"


def _folder(section: ConfigNode) -> Path:
    """Of the file that has it; names of files are relative to it."""
    return Path(section.path or "").absolute().parent


def _path(name: str | None) -> Path | None:
    return Path(name) if name else None
