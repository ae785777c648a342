"""What the installer is told, all of it by environment variables with the names of Coil v2; checked before a node is
touched.

In the network configuration an error would mean a node without pods (CNI specification, section 1); unknown keys
are the runtime's or another plugin's business. It is a list, or, in a file whose name ends in .conf, the configuration
of one plugin (CNI 0.1.0, "Network Configuration"), which may lack its version.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_PLUGIN = "coil"
_VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
_SINGLE_VERSIONS = ("0.1.0", "0.2.0", *_VERSIONS)
_SINGLE = ".conf"
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")


def check_conflist(text: str, *, plugin_name: str = DEFAULT_PLUGIN) -> None:
    """Raises InstallError that says which field is wrong."""
    conf = _read(text)
    if conf.get("cniVersion") not in _VERSIONS:
        raise InstallError(f"cniVersion is {conf.get('cniVersion')!r}, not one of {', '.join(_VERSIONS)}")
    plugins = conf.get("plugins")
    if not isinstance(plugins, list) or not plugins:
        raise InstallError("plugins is not a list with an entry")
    for index, plugin in enumerate(plugins):
        if not isinstance(plugin, dict) or not isinstance(plugin.get("type"), str):
            raise InstallError(f"plugins[{index}] is not an object with a type")
        if plugin["type"] == plugin_name:
            _check_socket(plugin, f"plugins[{index}].")
    if all(plugin["type"] != plugin_name for plugin in plugins):
        raise InstallError(f"no entry of plugins has the type {plugin_name}")


def check_conf(text: str, *, plugin_name: str = DEFAULT_PLUGIN) -> None:
    """The same for the configuration of one plugin, which is this one."""
    conf = _read(text)
    if "cniVersion" in conf and conf["cniVersion"] not in _SINGLE_VERSIONS:
        raise InstallError(f"cniVersion is {conf['cniVersion']!r}, not one of {', '.join(_SINGLE_VERSIONS)}")
    if conf.get("type") != plugin_name:
        raise InstallError(f"type is {conf.get('type')!r}, not {plugin_name!r}")
    _check_socket(conf, "")


def _read(text: str) -> dict[str, Any]:
    try:
        conf = json.loads(text)
    except ValueError as error:
        raise InstallError(f"the network configuration is not JSON: {error}") from error
    if not isinstance(conf, dict):
        raise InstallError("the network configuration is not a JSON object")
    name = conf.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InstallError(f"name is {name!r}, not a word of letters, digits, '_', '.' and '-'")
    return conf


def _check_socket(plugin: Mapping[str, Any], where: str) -> None:
    socket = plugin.get("socket", "/")
    if not (isinstance(socket, str) and socket.startswith("/")):
        raise InstallError(f"{where}socket is {socket!r}, not an absolute path")


class InstallError(Exception):
    """Nothing more can be done; the text is one sentence for the person who reads the pod's log."""


@dataclass(frozen=True, kw_only=True)
class NodeFolders:
    """Where on the node things go. The directories are the node's, perhaps as mounted into a container.

    `plugin_name` is the executable's name on the node, which is the `type` in the network configuration.
    """

    conf_dir: Path
    conf_name: str
    bin_dir: Path
    plugin_name: str = DEFAULT_PLUGIN

    @property
    def is_list(self) -> bool:
        """Whether the network configuration is a list, and not that of one plugin."""
        return not self.conf_name.endswith(_SINGLE)


@dataclass(frozen=True, kw_only=True)
class Settings:
    folders: NodeFolders
    plugin: Path
    """The plugin's executable, as coil-freezer builds it."""
    netconf: str
    """The network configuration, valid JSON."""


def parse_folders(environ: Mapping[str, str]) -> NodeFolders:
    """CNI_ETC_DIR, CNI_CONF_NAME, CNI_BIN_DIR, CNI_PLUGIN_NAME."""
    name = environ.get("CNI_CONF_NAME", "10-coil.conflist")
    if "/" in name or not name.endswith((".conflist", _SINGLE)):
        raise InstallError(f"CNI_CONF_NAME must be a file name that ends in .conflist or .conf, not {name!r}")
    plugin = environ.get("CNI_PLUGIN_NAME") or DEFAULT_PLUGIN
    if not _NAME.fullmatch(plugin):
        raise InstallError(f"CNI_PLUGIN_NAME is {plugin!r}, not a word of letters, digits, '_', '.' and '-'")
    return NodeFolders(
        conf_dir=_directory(environ, "CNI_ETC_DIR", "/host/etc/cni/net.d"),
        conf_name=name,
        bin_dir=_directory(environ, "CNI_BIN_DIR", "/host/opt/cni/bin"),
        plugin_name=plugin,
    )


def parse_settings(environ: Mapping[str, str]) -> Settings:
    """Also COIL_PATH and one of CNI_NETCONF and CNI_NETCONF_FILE. Raises InstallError."""
    folders = parse_folders(environ)
    return Settings(
        folders=folders,
        plugin=_plugin(environ.get("COIL_PATH") or "/coil"),
        netconf=_netconf(environ.get("CNI_NETCONF", ""), environ.get("CNI_NETCONF_FILE", ""), folders),
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


def _netconf(text: str, file: str, folders: NodeFolders) -> str:
    if bool(text) is bool(file):
        raise InstallError("set one of CNI_NETCONF and CNI_NETCONF_FILE")
    if file:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InstallError(f"CNI_NETCONF_FILE cannot be read: {error}") from error
    check = check_conflist if folders.is_list else check_conf
    check(text, plugin_name=folders.plugin_name)
    return text
