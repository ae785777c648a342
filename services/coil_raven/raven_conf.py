"""Kuryr's configuration of Raven, `/etc/kuryr/raven.conf`: what its settings are called here.

    raven.conf ─► parse_raven_conf ─► RavenConf.settings    ─► parse_settings, below the command line and environment
                                  └─► RavenConf.credentials ─► openstacksdk, unless clouds.yaml or OS_* are given

Its format is oslo.config's: an INI file whose interpolation (`$name`) is not supported here, as no option of these
needs it. The options are those of kuryr's `raven/common` and `lib/config.py` as of their retirement.
"""

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from coil.runtime.flag import Configured

DEFAULT_PATH: Final = Path("/etc/kuryr/raven.conf")
_MOST_BYTES: Final = 256 * 1024
_K8S: Final = {
    "cluster_subnet_pool": "supernets",
    "cluster_service_subnet": "service_cidrs",
    "cluster_external_subnet": "public_network",
}
"""In [k8s]: the setting of `coil_raven.settings` that takes its text."""
_KEYSTONEAUTH: Final = frozenset(
    {
        "auth_url",
        "username",
        "user_id",
        "password",
        "project_name",
        "project_id",
        "user_domain_name",
        "user_domain_id",
        "project_domain_name",
        "project_domain_id",
        "application_credential_id",
        "application_credential_secret",
    }
)
"""Arguments of keystoneauth's plugins."""
_INSECURE: Final = "insecure"
_OPENSTACK: Final[Mapping[str, Mapping[str, str]]] = {
    "keystone_client": {
        "auth_uri": "auth_url",
        "admin_user": "username",
        "admin_password": "password",
        "admin_tenant_name": "project_name",
        "auth_ca_cert": "cacert",
        "auth_insecure": _INSECURE,
    },
    "neutron_client": {"neutron_uri": "network_endpoint_override"},
    "neutron": {
        **{name: name for name in _KEYSTONEAUTH},
        "auth_type": "auth_type",
        "cafile": "cacert",
        "insecure": _INSECURE,
        "region_name": "region_name",
        "endpoint_override": "network_endpoint_override",
    },
}
"""The options of the sections that are about OpenStack, and what openstacksdk or keystoneauth calls each."""
_IGNORED: Final = frozenset({"DEFAULT"})
"""Sections with nothing but logging and threads, which flags of our own decide."""


class RavenConfError(ValueError):
    """The file cannot be used; the message says what is wrong in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RavenConf:
    """What a file says. `settings` are by the names of `coil_raven.settings.Settings`.

    `api_root` is the API server's URL, "" if not given. `credentials` are arguments of `openstack.connect`, None if
    there are none. `unknown` are options that mean nothing here, as `[section] option`.
    """

    settings: Mapping[str, Configured]
    api_root: str = ""
    credentials: Mapping[str, Any] | None = field(default=None, repr=False)
    unknown: tuple[str, ...] = ()


def read_raven_conf(path: Path) -> RavenConf | None:
    """The file's content; None if there is no such file. Raises RavenConfError."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RavenConfError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise RavenConfError(f"{path} has more than {_MOST_BYTES} bytes")
    try:
        return parse_raven_conf(data.decode())
    except ValueError as error:
        raise RavenConfError(f"{path}: {error}") from None


def parse_raven_conf(text: str) -> RavenConf:
    """What the text of a file says. Raises RavenConfError. No message has a value: some are secret."""
    parser = configparser.RawConfigParser(strict=False, default_section="", inline_comment_prefixes=None)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        # Its own message has the line.
        lines = [number for number, _ in getattr(error, "errors", ())] or [getattr(error, "lineno", None)]
        raise RavenConfError(f"line {lines[0]} is neither a section nor an option with a value") from None
    sections = {name: dict(parser.items(name)) for name in parser.sections()}
    unknown: list[str] = []
    settings: dict[str, Configured] = {}
    api_root = ""
    for option, value in sections.pop("k8s", {}).items():
        if option == "api_root":
            api_root = value
        elif option in _K8S:
            settings[_K8S[option]] = Configured(value, f"raven.conf: [k8s] {option}")
        else:
            unknown.append(f"[k8s] {option}")
    credentials = _credentials(sections, unknown)
    for section in sorted(sections.keys() - _IGNORED):
        unknown.extend(f"[{section}] {option}" for option in sections[section])
    return RavenConf(settings=settings, api_root=api_root, credentials=credentials, unknown=tuple(unknown))


def api_server(url: str) -> tuple[str, int]:
    """Host and port of an `api_root`. Raises RavenConfError for one without TLS."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise RavenConfError("[k8s] api_root has no port between 0 and 65535") from None
    if parts.scheme != "https" or not parts.hostname:
        raise RavenConfError(
            "[k8s] api_root is not https://HOST[:PORT]: an API server is reached with TLS only. Its certificate and "
            "the token are those of the service account, or of --kubeconfig"
        )
    return parts.hostname, 443 if port is None else port


def _credentials(sections: dict[str, dict[str, str]], unknown: list[str]) -> Mapping[str, Any] | None:
    """Take the sections that are about OpenStack out of `sections`."""
    auth: dict[str, str] = {}
    others: dict[str, Any] = {}
    for section, meanings in _OPENSTACK.items():
        for option, value in sections.pop(section, {}).items():
            meaning = meanings.get(option)
            if meaning is None:
                unknown.append(f"[{section}] {option}")
            elif meaning == _INSECURE:
                others["verify"] = value.lower() not in ("true", "1", "yes", "on")
            elif meaning in _KEYSTONEAUTH:
                auth[meaning] = value
            elif value:
                others[meaning] = value
    if not auth and not others:
        return None
    if "username" in auth:
        # Keystone's API version 2, of which Kuryr's options are, had this one domain.
        for owner in ("user", "project"):
            if f"{owner}_domain_name" not in auth:
                auth.setdefault(f"{owner}_domain_id", "default")
    if "auth_url" in auth:
        auth["auth_url"] = auth["auth_url"].rstrip("/").removesuffix("/v2.0")
    return {"auth": auth, **others}
