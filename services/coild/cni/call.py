"""A call of the plugin, read: which attachment, which pod, and what came before in the chain.

Raises CniError, as nothing of the call has had any effect yet.
"""

import os
import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final

import msgspec

from coil.cnirpc.error import CniError, CniErrorCode
from coil.cnirpc.messages import CniArgs
from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.kernel.family import IPAddress
from coil.kernel.link import parse_link_name
from coil.netlink.host import NetnsPath
from coil.podnet.host_port import PortMapping, Protocol
from coild.model.attachment import PodName


def read_key(args: CniArgs) -> AttachmentKey:
    """The container's interface."""
    if not args.container_id or ":" in args.container_id:
        raise CniError(
            CniErrorCode.INVALID_ENVIRONMENT_VARIABLES, f"CNI_CONTAINERID is not a container: {args.container_id!r}"
        )
    try:
        return AttachmentKey(ContainerId(args.container_id), parse_link_name(args.ifname))
    except ValueError as error:
        raise CniError(CniErrorCode.INVALID_ENVIRONMENT_VARIABLES, f"CNI_IFNAME: {error}") from None


_OF_PROCESS: Final = re.compile(r"/proc/[1-9][0-9]*/(task/[1-9][0-9]*/)?ns/net")


def read_netns(args: CniArgs) -> NetnsPath:
    """Where the pod's namespace is: a file, or /proc/<pid>/ns/net as Docker and others name it.

    coild that is process 1 has a PID namespace of its own, in which the number is nobody, or somebody else.
    """
    path = Path(args.netns)
    if not path.is_absolute():
        raise CniError(CniErrorCode.INVALID_ENVIRONMENT_VARIABLES, f"CNI_NETNS is not a path: {args.netns!r}")
    if path.parts[1:2] == ("proc",):
        if not _OF_PROCESS.fullmatch(args.netns):
            message = f"CNI_NETNS is no network namespace of a process: {args.netns!r}"
            raise CniError(CniErrorCode.INVALID_ENVIRONMENT_VARIABLES, message)
        if os.getpid() == 1:
            message = f"coild does not see the node's processes, and CNI_NETNS names one: {args.netns}"
            raise CniError(
                CniErrorCode.INVALID_ENVIRONMENT_VARIABLES, message, "set coild.hostPID in the chart's values"
            )
    return NetnsPath(path)


def read_argument(args: CniArgs, name: str) -> str:
    """One of CNI_ARGS that must be there."""
    if not (value := args.args.get(name, "")):
        raise CniError(CniErrorCode.INVALID_ENVIRONMENT_VARIABLES, f"CNI_ARGS has no {name}")
    return value


def read_pod(args: CniArgs) -> PodName:
    """The pod of an ADD, whose name must be there."""
    read_argument(args, "K8S_POD_NAMESPACE")
    read_argument(args, "K8S_POD_NAME")
    return read_pod_if_given(args)


def read_pod_if_given(args: CniArgs) -> PodName:
    """The pod as far as the call names it."""
    given = args.args.get
    return PodName(given("K8S_POD_NAMESPACE", ""), given("K8S_POD_NAME", ""), given("K8S_POD_UID", ""))


class _ValidAttachment(msgspec.Struct, frozen=True):
    container_id: str = msgspec.field(name="containerID")
    ifname: str


class _Chained(msgspec.Struct, frozen=True, rename="camel"):
    prev_result: msgspec.Raw = msgspec.Raw(b"")


class _PortMapping(msgspec.Struct, frozen=True):
    host_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = msgspec.field(name="hostport", default=0)
    container_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = msgspec.field(name="containerport", default=0)
    protocol: str = ""
    host_ip: str = msgspec.field(name="hostip", default="")


class _RuntimeConfig(msgspec.Struct, frozen=True, rename="camel"):
    port_mappings: tuple[dict[str, object], ...] | None = None


class _Configured(msgspec.Struct, frozen=True, rename="camel"):
    runtime_config: _RuntimeConfig | None = None


class _Network(msgspec.Struct, frozen=True):
    name: str
    valid_attachments: tuple[_ValidAttachment, ...] | None = msgspec.field(
        name="cni.dev/valid-attachments", default=None
    )


def read_network(args: CniArgs) -> str:
    """The network's name; "" in a configuration that cannot be read, which is the plugin's affair."""
    try:
        return msgspec.json.decode(args.stdin_data, type=_Network).name
    except msgspec.MsgspecError:
        return ""


def read_port_mappings(args: CniArgs) -> tuple[PortMapping, ...]:
    """What the runtime asks for by the capability `portMappings` (CNI's conventions, CONVENTIONS.md); of entries
    without a host port there is nothing to do.

    The keys are read as Go reads them, which knows no case: CRI-O writes `hostPort`, containerd `HostPort`.
    """
    try:
        conf = msgspec.json.decode(args.stdin_data, type=_Configured)
        found = conf.runtime_config.port_mappings if conf.runtime_config is not None else None
        entries = [
            msgspec.convert({key.lower(): value for key, value in entry.items()}, type=_PortMapping)
            for entry in found or ()
        ]
    except msgspec.MsgspecError as error:
        raise CniError(CniErrorCode.DECODING_FAILURE, "the network configuration cannot be read", str(error)) from None
    return tuple(_parse_mapping(entry) for entry in entries if entry.host_port)


def _parse_mapping(entry: _PortMapping) -> PortMapping:
    try:
        return PortMapping(
            protocol=Protocol(entry.protocol.lower() or Protocol.TCP),
            host_port=entry.host_port,
            container_port=entry.container_port or entry.host_port,
            host_address=ip_address(entry.host_ip) if entry.host_ip else None,
        )
    except ValueError as error:
        raise CniError(
            CniErrorCode.INVALID_NETWORK_CONFIG, f"portMappings: host port {entry.host_port}", str(error)
        ) from None


def read_valid_attachments(args: CniArgs) -> tuple[str, frozenset[AttachmentKey]]:
    """The network's name, and all attachments to it that the runtime knows of (CNI 1.1.0, GC)."""
    try:
        conf = msgspec.json.decode(args.stdin_data, type=_Network)
    except msgspec.MsgspecError as error:
        raise CniError(CniErrorCode.DECODING_FAILURE, "the network configuration cannot be read", str(error)) from None
    if not conf.name or conf.valid_attachments is None:
        # Nothing said is not nothing valid.
        raise CniError(
            CniErrorCode.INVALID_NETWORK_CONFIG, "a GC needs the network's name and its cni.dev/valid-attachments"
        )
    return conf.name, frozenset(
        AttachmentKey(ContainerId(entry.container_id), entry.ifname) for entry in conf.valid_attachments
    )


def is_chained(args: CniArgs) -> bool:
    """Whether there is a result so far. Outside an ADD that says nothing: the runtime hands on the ADD's own result."""
    return args.args.get("IS_CHAINED") == "true"


def read_previous_addresses(args: CniArgs) -> tuple[IPAddress, ...]:
    """Those of the result of the plugin before."""
    try:
        return tuple(ip_address(text.partition("/")[0]) for text in args.ips)
    except ValueError as error:
        raise CniError(CniErrorCode.INVALID_NETWORK_CONFIG, "prevResult has no address", str(error)) from None


def read_previous_result(args: CniArgs) -> bytes:
    """The result of the plugin before, as it stands in the network configuration."""
    try:
        return bytes(msgspec.json.decode(args.stdin_data, type=_Chained).prev_result)
    except msgspec.MsgspecError as error:
        raise CniError(CniErrorCode.DECODING_FAILURE, "the network configuration cannot be read", str(error)) from None
