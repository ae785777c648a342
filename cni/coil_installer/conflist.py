"""The network configuration list, checked before a runtime reads it: there an error means a node without pods.

Source: CNI specification, section 1. Unknown keys are the runtime's or another plugin's business.
"""

import json
import re

from coil_installer.error import InstallError

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
