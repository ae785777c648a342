"""The network configuration from standard input, as far as the plugin itself reads it; coild gets all of it.

Codes: 6 when it is not JSON of the right shape (fields of a wrong type included), 1 when its version is not ours
or does not have the command, 7 when a value is not acceptable.
"""

import posix

from coil_cni.error import DECODING_FAILURE, INCOMPATIBLE_CNI_VERSION, INVALID_NETWORK_CONFIG, CniError
from coil_cni.invocation import NEWEST, SINCE, SUPPORTED, allows, is_word
from coil_cni.json_text import decode

DEFAULT_SOCKET = "/run/coild.sock"
CHART_FOLDER = "/run/coil"
"""Where the chart has the socket. A pod of Coil v2 may be deleted with the configuration that its runtime kept, which
says nothing of a socket. The folder is there while coild is not.
"""
_F_OK = 0  # unistd.h
_ATTACHMENTS = "cni.dev/valid-attachments"
_SOCKET_MAX = 107  # sun_path without the NUL, linux/un.h


class NetConf:
    """A valid configuration. `prev_result` is None outside a chain, else an object in the format of `version`."""

    __slots__ = ("interfaces", "ips", "prev_result", "socket", "version")

    def __init__(self, version: str, socket: str, prev_result: dict[str, object] | None) -> None:
        self.version = version
        self.socket = socket
        self.prev_result = prev_result
        self.ips = _addresses(prev_result or {})
        self.interfaces = _interfaces(prev_result or {})


def read_version(data: bytes) -> str:
    """The cniVersion of an object on standard input; NEWEST when there is none. All that VERSION reads."""
    return _string(_decode_object(data), "cniVersion", NEWEST) if data.strip() else NEWEST


def parse_netconf(data: bytes, command: str) -> NetConf:
    """Raises CniError with code 1, 6 or 7."""
    conf = _decode_object(data)
    # The specification's first versions had no such field.
    version = _string(conf, "cniVersion", "0.1.0") or "0.1.0"
    if version not in SUPPORTED:
        details = f"supported: {', '.join(SUPPORTED)}"
        raise CniError(INCOMPATIBLE_CNI_VERSION, f"cniVersion {version!r} is not supported", details)
    if not allows(version, command):
        msg = f"cniVersion {version} has no {command}, it came with {SINCE[command]}"
        raise CniError(INCOMPATIBLE_CNI_VERSION, msg)
    name = _string(conf, "name", "")
    if not is_word(name):
        raise CniError(INVALID_NETWORK_CONFIG, "the network's name is missing or has invalid characters", name)
    socket = _string(conf, "socket", "") or DEFAULT_SOCKET
    if not socket.startswith("/") or "\0" in socket or len(socket.encode()) > _SOCKET_MAX:
        msg = f"socket must be an absolute path of at most {_SOCKET_MAX} bytes"
        raise CniError(INVALID_NETWORK_CONFIG, msg, socket)
    prev_result = conf.get("prevResult")
    if prev_result is not None and not isinstance(prev_result, dict):
        raise CniError(DECODING_FAILURE, "prevResult is not an object")
    if command == "GC":
        _check_attachments(conf)
    return NetConf(version, _find_socket(socket), prev_result)


def _find_socket(path: str) -> str:
    if path == DEFAULT_SOCKET and not _exists(path) and _exists(CHART_FOLDER):
        return f"{CHART_FOLDER}/coild.sock"
    return path


def _exists(path: str) -> bool:
    return posix.access(path, _F_OK)


def _check_attachments(conf: dict[str, object]) -> None:
    """Without the list of what is to stay, a GC would have to take everything away: it is refused."""
    attachments = conf.get(_ATTACHMENTS)
    if attachments is None:
        raise CniError(INVALID_NETWORK_CONFIG, f"a GC needs {_ATTACHMENTS}")
    if not isinstance(attachments, list) or not all(
        isinstance(entry, dict) and _string(entry, "containerID", "") and _string(entry, "ifname", "")
        for entry in attachments
    ):
        raise CniError(DECODING_FAILURE, f"{_ATTACHMENTS} is not a list of objects with containerID and ifname")


def _decode_object(data: bytes) -> dict[str, object]:
    try:
        conf = decode(data)
    except ValueError as error:
        raise CniError(DECODING_FAILURE, "the network configuration is not JSON", str(error)) from None
    if not isinstance(conf, dict):
        raise CniError(DECODING_FAILURE, "the network configuration is not a JSON object")
    return conf


def _string(conf: dict[str, object], key: str, default: str) -> str:
    value = conf.get(key)
    if value is None:
        return default
    if not isinstance(value, str):
        raise CniError(DECODING_FAILURE, f"{key} in the network configuration is not a string")
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON can say "\ud800", half of a character
        raise CniError(DECODING_FAILURE, f"{key} in the network configuration is not Unicode") from None
    return value


def _objects(result: dict[str, object], key: str) -> list[dict[str, object]]:
    value = result.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise CniError(DECODING_FAILURE, f"{key} in prevResult is not a list of objects")
    return value


def _addresses(prev_result: dict[str, object]) -> list[str]:
    return [_string(ip, "address", "").partition("/")[0] for ip in _objects(prev_result, "ips")]


def _interfaces(prev_result: dict[str, object]) -> dict[str, bool]:
    links = _objects(prev_result, "interfaces")
    return {_string(link, "name", ""): _string(link, "sandbox", "") != "" for link in links}
