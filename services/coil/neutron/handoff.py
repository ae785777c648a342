"""How coil-raven tells a node of a pod's port: the annotation `kuryr.org/neutron-port`, and its codec.

    coil-raven ─► render_handoff ─► annotation of the pod ─► parse_handoff ─► coild

Both ends use this codec and no other. The document has a version: a reader refuses one that it does not know, as half
an understanding of where a pod is plugged is worse than none. Fields may be added without a new version; unknown ones
are skipped.

An annotation may be written by whoever may write the pod. The admission policy keeps all but coil-raven from these
keys, and `pod_uid` ties the document to the pod, so that one that was copied from another pod is refused.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface
from typing import Final

import msgspec

from coil.kernel.family import IPAddress, IPInterface
from coil.kernel.link import MacAddress
from coil.neutron.port_rules import MOST_RULES, RuleSet, make_rule_set, parse_rule
from coil.neutron.resource import NetworkId, PortId, ProjectId

ANNOTATION_PORT: Final = "kuryr.org/neutron-port"
"""Of a pod; written by coil-raven alone."""
ANNOTATION_PROJECT: Final = "kuryr.org/project"
"""Of a namespace: in which project its networks and ports are; written by an administrator."""
ANNOTATION_HOST: Final = "kuryr.org/host"
"""Of a node: its name as Neutron's agents have it, where that is not the Node's own."""
VERSION: Final = 1

BRIDGE: Final = "bridge"
"""The type of ports that coild plugs in itself."""
_TYPE: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_ID: Final = re.compile(r"[0-9A-Fa-f-]{32,36}")
_MAC: Final = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}")
_LARGEST: Final = 16 * 1024
"""Bytes of a document; one of this codec has less than 2 KiB."""
_MOST_ADDRESSES: Final = 16


class HandoffError(ValueError):
    """The annotation cannot be used; the message says why, for the administrator."""


@dataclass(frozen=True, slots=True)
class PortAddress:
    """One of the port's addresses: with the prefix length of its subnet, and the subnet's gateway if it has one."""

    interface: IPInterface
    gateway: IPAddress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """A pod's port. `type` names the program that plugs it in: never a path, as `parse_binding_type` has seen it.

    `segmentation` is the VXLAN network identifier where the network has one. `mtu` is the network's, in bytes. `active`
    is whether Neutron knew, when this was written, that the port is plugged in.

    `rules` are those of the port's security groups, which the node enforces where Neutron has no agent that does; None
    if everything passes.
    """

    port: PortId
    pod_uid: str
    mac: MacAddress
    addresses: tuple[PortAddress, ...]
    network: NetworkId
    project: ProjectId
    type: str
    mtu: int
    segmentation: int | None = None
    nameservers: tuple[IPAddress, ...] = ()
    active: bool = False
    rules: RuleSet | None = None


class _Address(msgspec.Struct, omit_defaults=True):
    ip: str
    gateway: str = ""


class _Document(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The annotation's shape. `version` is first for whoever reads it with their own eyes."""

    version: int
    port_id: str
    pod_uid: str
    mac: str
    ips: list[_Address]
    network_id: str
    project_id: str
    type: str
    mtu: int
    segmentation: int | None = None
    nameservers: list[str] = []
    active: bool = False
    rules: list[str] | None = None


class _Versioned(msgspec.Struct):
    version: int = 0


def parse_binding_type(text: str) -> str:
    """The type of a port, by which the program that plugs it in is found in its folder. Raises HandoffError.

    Letters, digits and hyphens: no text from outside becomes a path.
    """
    if _TYPE.fullmatch(text) is None:
        raise HandoffError(f"the port's type {text!r} is none: up to 32 lowercase letters, digits and hyphens")
    return text


def render_handoff(handoff: Handoff) -> str:
    """The annotation's text: one line, the same for the same port."""
    document = _Document(
        version=VERSION,
        port_id=handoff.port,
        pod_uid=handoff.pod_uid,
        mac=handoff.mac,
        ips=[
            _Address(ip=str(address.interface), gateway="" if address.gateway is None else str(address.gateway))
            for address in handoff.addresses
        ],
        network_id=handoff.network,
        project_id=handoff.project,
        type=handoff.type,
        mtu=handoff.mtu,
        segmentation=handoff.segmentation,
        nameservers=[str(address) for address in handoff.nameservers],
        active=handoff.active,
        rules=None if handoff.rules is None else list(map(str, handoff.rules)),
    )
    return msgspec.json.encode(document).decode()


def parse_handoff(text: str, *, pod_uid: str) -> Handoff:
    """The port that an annotation of the pod with that UID names.

    Raises HandoffError if it is not one of this codec's documents, or is another pod's.
    """
    if len(text) > _LARGEST:
        raise HandoffError(f"the annotation {ANNOTATION_PORT} has more than {_LARGEST} characters")
    try:
        version = msgspec.json.decode(text, type=_Versioned).version
        if version != VERSION:
            raise HandoffError(
                f"the annotation {ANNOTATION_PORT} has version {version}, and this coild knows version {VERSION} only"
            )
        document = msgspec.json.decode(text, type=_Document)
        handoff = _handoff(document)
    except HandoffError:
        raise
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise HandoffError(f"the annotation {ANNOTATION_PORT} cannot be read: {error}") from None
    if handoff.pod_uid != pod_uid:
        raise HandoffError(
            f"the annotation {ANNOTATION_PORT} is that of the pod with UID {handoff.pod_uid}, not that of {pod_uid}"
        )
    return handoff


def _handoff(document: _Document) -> Handoff:
    if not 1 <= len(document.ips) <= _MOST_ADDRESSES:
        raise ValueError(f"it has {len(document.ips)} addresses")
    return Handoff(
        port=PortId(parse_id(document.port_id)),
        pod_uid=document.pod_uid,
        mac=parse_mac(document.mac),
        addresses=tuple(parse_address(entry.ip, entry.gateway) for entry in document.ips),
        network=NetworkId(parse_id(document.network_id)),
        project=ProjectId(document.project_id),
        type=parse_binding_type(document.type),
        mtu=_mtu(document.mtu),
        segmentation=parse_segmentation(document.segmentation),
        nameservers=tuple(ip_address(text) for text in document.nameservers),
        active=document.active,
        rules=parse_rules(document.rules),
    )


def parse_id(text: str) -> str:
    """The ID of one of Neutron's objects. Raises ValueError."""
    if _ID.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no UUID")
    return text


def parse_mac(text: str) -> MacAddress:
    """A port's hardware address. Raises ValueError."""
    lowered = text.lower()
    if _MAC.fullmatch(lowered) is None or int(lowered[:2], 16) & 1:
        raise ValueError(f"{text!r} is not the hardware address of one interface")
    return MacAddress(lowered)


def parse_address(ip: str, gateway: str = "") -> PortAddress:
    """An address with its prefix length, and the gateway of its subnet, "" for none. Raises ValueError."""
    interface = ip_interface(ip)
    if "/" not in ip:
        raise ValueError(f"{ip!r} has no prefix length")
    if not gateway:
        return PortAddress(interface)
    router = ip_address(gateway)
    if router.version != interface.version or router not in interface.network or router == interface.ip:
        raise ValueError(f"{router} cannot be the gateway of {interface}")
    return PortAddress(interface, router)


def parse_segmentation(value: int | None) -> int | None:
    """A VXLAN network identifier, None for none. Raises ValueError."""
    if value is not None and not 0 < value < 1 << 24:
        raise ValueError(f"{value} is no VXLAN network identifier")
    return value


def parse_rules(texts: Collection[str] | None) -> RuleSet | None:
    """The rules of a port's security groups. Raises ValueError: the port is not plugged in with half of them."""
    if texts is None:
        return None
    if len(texts) > MOST_RULES:
        raise ValueError(f"it has {len(texts)} rules")
    return make_rule_set(map(parse_rule, texts))


def _mtu(value: int) -> int:
    # RFC 791 and RFC 8200 have every host take packets of that size at least; the kernel's own limit is 65535.
    if not 68 <= value <= 65535:
        raise ValueError(f"{value} is no MTU")
    return value
