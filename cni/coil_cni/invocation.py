"""How the plugin was called: the environment variables of the CNI specification, checked.

Every error here has code 4, INVALID_ENVIRONMENT. Source: SPEC.md "Parameters", and for the syntax of names and of
CNI_ARGS the reference implementation's pkg/utils and pkg/types/args.go.
"""

from coil_cni.error import INVALID_ENVIRONMENT, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SUPPORTED = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
"""Versions of the CNI specification, in their order."""
NEWEST = SUPPORTED[-1]

SINCE = {
    "ADD": "0.1.0",
    "DEL": "0.1.0",
    "CHECK": "0.4.0",
    "GC": "1.1.0",
    "STATUS": "1.1.0",
    "VERSION": "0.1.0",
}
"""Command → the first version of SUPPORTED whose configurations may be used with it. VERSION is asked of any."""


def allows(version: str, command: str) -> bool:
    """Whether a network configuration of this (supported) version may be used with the command."""
    return SUPPORTED.index(version) >= SUPPORTED.index(SINCE[command])


_REQUIRED = {
    "ADD": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "CHECK": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    # The namespace may be gone by then.
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME"),
    "GC": (),
    "STATUS": (),
    "VERSION": (),
}
"""Command → what it cannot be without. CNI_PATH is coild's business."""
_OF_A_POD = ("ADD", "CHECK", "DEL")
NAMESPACE = "K8S_POD_NAMESPACE"
NAME = "K8S_POD_NAME"
_POD_ARGS = (NAMESPACE, NAME, "K8S_POD_INFRA_CONTAINER_ID", "K8S_POD_UID")
_PORT_ARGS = (
    "PORT_UUID",
    "PORT_TYPE",
    "IPV4",
    "GW",
    "IPV6",
    "GW6",
    "MAC",
    "NETWORK_UUID",
    "TENANT_UUID",
    "SEGMENTATION_ID",
)
"""A port in Neutron that the runtime knows: coild has the checks (`coil.neutron.port_arguments`)."""
_IGNORE_UNKNOWN = "IgnoreUnknown"
_KEYS = (*_POD_ARGS, *_PORT_ARGS, _IGNORE_UNKNOWN)
_IFNAME_MAX = 15  # IFNAMSIZ without the NUL, linux/if.h

_ALPHANUMERIC = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_WORD = _ALPHANUMERIC + "_.-"


class Invocation:
    """A valid call. `pod_args` has the four K8S_POD_ keys, "" for one that is missing, and those of a port."""

    __slots__ = ("command", "container_id", "ifname", "netns", "path", "pod_args")

    def __init__(self, command: str, variables: "Mapping[str, str]", pod_args: dict[str, str]) -> None:
        self.command = command
        self.container_id = variables["CNI_CONTAINERID"]
        self.netns = variables["CNI_NETNS"]
        self.ifname = variables["CNI_IFNAME"]
        self.path = variables["CNI_PATH"]
        self.pod_args = pod_args


def is_word(text: str) -> bool:
    """A letter or digit, then letters, digits, `_`, `.`, `-`: container IDs and network names."""
    return text != "" and text[0] in _ALPHANUMERIC and not text.strip(_WORD)


def parse_invocation(environ: "Mapping[bytes, bytes]") -> Invocation:
    """Raises CniError with code 4, naming the variable at fault."""
    command = _variable(environ, "CNI_COMMAND")
    if not command:
        raise CniError(INVALID_ENVIRONMENT, "required environment variable CNI_COMMAND is missing")
    if command not in SINCE:
        raise CniError(INVALID_ENVIRONMENT, f"unknown CNI_COMMAND {command!r}")
    names = ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH")
    variables = {name: _variable(environ, name) for name in names}
    missing = [name for name in _REQUIRED[command] if not variables[name]]
    if missing:
        msg = f"required environment variables are missing: {', '.join(missing)}"
        raise CniError(INVALID_ENVIRONMENT, msg)
    pod_args = dict.fromkeys(_POD_ARGS, "")
    if command in _OF_A_POD:
        _check_container_id(variables["CNI_CONTAINERID"])
        _check_ifname(variables["CNI_IFNAME"])
        pod_args = _parse_args(_variable(environ, "CNI_ARGS"))
    if command == "ADD" and not (pod_args[NAMESPACE] and pod_args[NAME]):
        raise CniError(INVALID_ENVIRONMENT, f"CNI_ARGS does not name the pod: {NAMESPACE}, {NAME}")
    return Invocation(command, variables, pod_args)


def _variable(environ: "Mapping[bytes, bytes]", name: str) -> str:
    try:
        return environ.get(name.encode(), b"").decode()
    except UnicodeDecodeError:
        raise CniError(INVALID_ENVIRONMENT, f"{name} is not UTF-8") from None


def _check_container_id(container_id: str) -> None:
    if not is_word(container_id):
        raise CniError(INVALID_ENVIRONMENT, "invalid characters in CNI_CONTAINERID", container_id)


def _check_ifname(ifname: str) -> None:
    # What the kernel's dev_valid_name refuses. Bytes count, not characters.
    wrong = (
        "is too long"
        if len(ifname.encode()) > _IFNAME_MAX
        else "is a path"
        if ifname in (".", "..")
        else "has a slash, a colon or a blank in it"
        if "/" in ifname or ":" in ifname or "".join(ifname.split()) != ifname
        else ""
    )
    if wrong:
        raise CniError(INVALID_ENVIRONMENT, f"CNI_IFNAME {wrong}", ifname)


def _parse_args(text: str) -> dict[str, str]:
    """`KEY=value;…`. An unknown key is an error unless IgnoreUnknown is true: so the runtimes expect it."""
    pod_args = dict.fromkeys(_POD_ARGS, "")
    unknown = []
    ignore_unknown = False
    for pair in _split_args(text) if text else ():
        key, separator, value = pair.partition("=")
        if not separator or "=" in value:
            raise CniError(INVALID_ENVIRONMENT, "CNI_ARGS has an invalid pair", pair)
        if key in _POD_ARGS or key in _PORT_ARGS:
            pod_args[key] = value
        elif key == _IGNORE_UNKNOWN:
            ignore_unknown = _parse_bool(value)
        else:
            unknown.append(key)
    if unknown and not ignore_unknown:
        raise CniError(INVALID_ENVIRONMENT, "CNI_ARGS has unknown keys", ", ".join(unknown))
    return pod_args


def _split_args(text: str) -> list[str]:
    """The pairs. A comma separates as a semicolon does, but only in front of a known key: values may have some, too."""
    pairs = []
    for part in text.split(";"):
        first, *others = part.split(",")
        pairs.append(first)
        for other in others:
            if other.partition("=")[0] in _KEYS:
                pairs.append(other)
            else:
                pairs[-1] += "," + other
    return pairs


def _parse_bool(text: str) -> bool:
    match text.lower():
        case "1" | "true":
            return True
        case "0" | "false":
            return False
    raise CniError(INVALID_ENVIRONMENT, "IgnoreUnknown in CNI_ARGS is not a boolean", text)
