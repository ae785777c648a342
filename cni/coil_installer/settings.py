"""What the installer is told, all of it by environment variables with the names of Coil v2; checked before a node is
touched.

In the network configuration list an error would mean a node without pods (CNI specification, section 1); unknown keys
are the runtime's or another plugin's business.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")


def check_conflist(text: str) -> None:
    """Raises InstallError that says which field is wrong."""
    try:
        conf = json.loads(text)
    except ValueError as error:
        raise InstallError(f"the network configuration is not JSON: {error}") from error
    if not isinstance(conf, dict):
        raise InstallError("the network configuration is not a JSON object")
    if conf.get("cniVersion") not in _VERSIONS:
        raise InstallError(f"cniVersion is {conf.get('cniVersion')!r}, not one of {', '.join(_VERSIONS)}")
    name = conf.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InstallError(f"name is {name!r}, not a word of letters, digits, '_', '.' and '-'")
    plugins = conf.get("plugins")
    if not isinstance(plugins, list) or not plugins:
        raise InstallError("plugins is not a list with an entry")
    for index, plugin in enumerate(plugins):
        if not isinstance(plugin, dict) or not isinstance(plugin.get("type"), str):
            raise InstallError(f"plugins[{index}] is not an object with a type")
        socket = plugin.get("socket", "/")
        if plugin["type"] == "coil" and not (isinstance(socket, str) and socket.startswith("/")):
            raise InstallError(f"plugins[{index}].socket is {socket!r}, not an absolute path")
    if all(plugin["type"] != "coil" for plugin in plugins):
        raise InstallError("no entry of plugins has the type coil")


class InstallError(Exception):
    """Nothing more can be done; the text is one sentence for the person who reads the pod's log."""


@dataclass(frozen=True, kw_only=True)
class NodeFolders:
    """Where on the node things go. The directories are the node's, perhaps as mounted into a container."""

    conf_dir: Path
    conf_name: str
    bin_dir: Path


@dataclass(frozen=True, kw_only=True)
class Settings:
    folders: NodeFolders
    plugin: Path
    """The plugin's executable, as coil-freezer builds it."""
    netconf: str
    """The network configuration list, valid JSON."""


def parse_folders(environ: Mapping[str, str]) -> NodeFolders:
    """CNI_ETC_DIR, CNI_CONF_NAME, CNI_BIN_DIR."""
    name = environ.get("CNI_CONF_NAME", "10-coil.conflist")
    if "/" in name or not name.endswith(".conflist"):
        raise InstallError(f"CNI_CONF_NAME must be a file name that ends in .conflist, not {name!r}")
    return NodeFolders(
        conf_dir=_directory(environ, "CNI_ETC_DIR", "/host/etc/cni/net.d"),
        conf_name=name,
        bin_dir=_directory(environ, "CNI_BIN_DIR", "/host/opt/cni/bin"),
    )


def parse_settings(environ: Mapping[str, str]) -> Settings:
    """Also COIL_PATH and one of CNI_NETCONF and CNI_NETCONF_FILE. Raises InstallError."""
    return Settings(
        folders=parse_folders(environ),
        plugin=_plugin(environ.get("COIL_PATH") or "/coil"),
        netconf=_netconf(environ.get("CNI_NETCONF", ""), environ.get("CNI_NETCONF_FILE", "")),
    )


def _directory(environ: Mapping[str, str], name: str, default: str) -> Path:
    path = Path(environ.get(name) or default)
    if not path.is_absolute():
        raise InstallError(f"{name} must be an absolute path, not {str(path)!r}")
    return path


def _plugin(given: str) -> Path:
    path = Path(given)
    if not path.is_file():
        raise InstallError(f"COIL_PATH has no file {given}; build it with: python -m coil_freezer {given}")
    return path


def _netconf(text: str, file: str) -> str:
    if bool(text) is bool(file):
        raise InstallError("set one of CNI_NETCONF and CNI_NETCONF_FILE")
    if file:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InstallError(f"CNI_NETCONF_FILE cannot be read: {error}") from error
    check_conflist(text)
    return text
