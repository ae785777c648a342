"""A pod's port as CNI_ARGS name it: what a runtime that knows the port passes, so that nobody has to be asked.

    CNI_ARGS ─► parse_port_arguments ─► PortArguments ─► complete_port ─► Handoff
    annotation of the same port ─► Handoff ────────────────────┘

Pure. What the port's type needs and CNI_ARGS lack comes from the annotation, if that names the same port.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from coil.kernel.link import MacAddress
from coil.neutron.handoff import (
    BRIDGE,
    Handoff,
    PortAddress,
    parse_address,
    parse_binding_type,
    parse_id,
    parse_mac,
    parse_segmentation,
)
from coil.neutron.resource import NetworkId, PortId, ProjectId

PORT: Final = "PORT_UUID"
TYPE: Final = "PORT_TYPE"
IPV4: Final = "IPV4"
GATEWAY: Final = "GW"
IPV6: Final = "IPV6"
GATEWAY_IPV6: Final = "GW6"
MAC: Final = "MAC"
NETWORK: Final = "NETWORK_UUID"
PROJECT: Final = "TENANT_UUID"
SEGMENTATION: Final = "SEGMENTATION_ID"
KEYS: Final = (PORT, TYPE, IPV4, GATEWAY, IPV6, GATEWAY_IPV6, MAC, NETWORK, PROJECT, SEGMENTATION)

_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    # MidoNet knows all else of a port itself.
    "midonet": (),
    BRIDGE: (MAC, NETWORK, SEGMENTATION),
}
_NEEDED_BY_OTHERS: Final = (MAC, NETWORK, PROJECT)
"""An executable is called with these."""


class PortArgumentsError(ValueError):
    """CNI_ARGS cannot be used; the message names the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortArguments:
    """What CNI_ARGS say of a port; None and empty where they say nothing."""

    port: PortId
    type: str | None = None
    addresses: tuple[PortAddress, ...] = ()
    mac: MacAddress | None = None
    network: NetworkId | None = None
    project: ProjectId | None = None
    segmentation: int | None = None


def parse_port_arguments(arguments: Mapping[str, str]) -> PortArguments | None:
    """The port that they name; None if they name none. Raises PortArgumentsError."""
    given = {key: value for key in KEYS if (value := arguments.get(key, ""))}
    if not given:
        return None
    if PORT not in given:
        raise PortArgumentsError(f"CNI_ARGS has {', '.join(given)}, but no {PORT}")
    key = PORT
    try:
        port = PortId(parse_id(given[key]))
        type_ = parse_binding_type(given[key]) if (key := TYPE) in given else None
        mac = parse_mac(given[key]) if (key := MAC) in given else None
        network = NetworkId(parse_id(given[key])) if (key := NETWORK) in given else None
        project = ProjectId(parse_id(given[key])) if (key := PROJECT) in given else None
        segmentation = parse_segmentation(int(given[key])) if (key := SEGMENTATION) in given else None
        addresses = []
        for key, gateway, version in ((IPV4, GATEWAY, 4), (IPV6, GATEWAY_IPV6, 6)):
            if key in given:
                addresses.append(parse_address(given[key], given.get(gateway, "")))
                if addresses[-1].interface.version != version:
                    raise ValueError(f"{given[key]!r} is not of that IP version")
            elif gateway in given:
                raise PortArgumentsError(f"CNI_ARGS has {gateway}, but no {key}")
    except PortArgumentsError:
        raise
    except ValueError as error:
        raise PortArgumentsError(f"{key} in CNI_ARGS: {error}") from None
    return PortArguments(
        port=port,
        type=type_,
        addresses=tuple(addresses),
        mac=mac,
        network=network,
        project=project,
        segmentation=segmentation,
    )


def missing_keys(given: PortArguments, noted: Handoff | None = None) -> tuple[str, ...]:
    """What neither CNI_ARGS nor the annotation say, though the type of the port needs it; an annotation of another
    port says nothing.
    """
    if noted is not None and noted.port == given.port:
        # It lacks nothing but, where a network has none, the identifier.
        needs_segmentation = SEGMENTATION in _needed(given.type or noted.type)
        lacks = needs_segmentation and given.segmentation is None and noted.segmentation is None
        return (SEGMENTATION,) if lacks else ()
    known = {
        TYPE: given.type,
        IPV4: given.addresses or None,
        MAC: given.mac,
        NETWORK: given.network,
        PROJECT: given.project,
        SEGMENTATION: given.segmentation,
    }
    needed = (TYPE, IPV4, *(_needed(given.type) if given.type is not None else ()))
    return tuple(key for key in needed if known[key] is None)


def complete_port(given: PortArguments, noted: Handoff | None, *, pod_uid: str, mac: MacAddress, mtu: int) -> Handoff:
    """The port: what CNI_ARGS say stands, and the annotation of the same port adds what they do not.

    Without an annotation the `mtu` is this one, in bytes, and so is the `mac` of a type that needs none. Raises
    PortArgumentsError with the keys that are missing.
    """
    if missing := missing_keys(given, noted):
        raise PortArgumentsError(
            f"CNI_ARGS and the pod's annotation lack {', '.join(missing)} of the port {given.port}"
        )
    if noted is None or noted.port != given.port:
        return Handoff(
            port=given.port,
            pod_uid=pod_uid,
            mac=given.mac or mac,
            addresses=given.addresses,
            network=given.network or NetworkId(""),
            project=given.project or ProjectId(""),
            type=given.type or "",
            mtu=mtu,
            segmentation=given.segmentation,
        )
    families = {address.interface.version for address in given.addresses}
    others = tuple(address for address in noted.addresses if address.interface.version not in families)
    return Handoff(
        port=given.port,
        pod_uid=noted.pod_uid,
        mac=given.mac or noted.mac,
        addresses=given.addresses + others,
        network=given.network or noted.network,
        project=given.project or noted.project,
        type=given.type or noted.type,
        mtu=noted.mtu,
        segmentation=noted.segmentation if given.segmentation is None else given.segmentation,
        nameservers=noted.nameservers,
        active=noted.active,
        rules=noted.rules,
    )


def _needed(type_: str) -> tuple[str, ...]:
    return _NEEDED.get(type_, _NEEDED_BY_OTHERS)
