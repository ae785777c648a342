"""The packets of the node's pods that it is to forward, for `coil.nft.forward_watch`."""

from collections.abc import Iterable
from typing import Final

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName
from coil.kernel.packet_filter import ForwardedPacket
from coild.model.attachment import Attachment

DROPPED: Final = "PodTrafficDropped"
"""The Event's reason."""


def plan_packets(attachments: Iterable[Attachment], uplink: LinkName) -> dict[str, ForwardedPacket]:
    """What is to pass, by what it is called: for one pod of each family, what it sends and what is sent to it. Pure."""
    found: dict[Family, tuple[LinkName, IPAddress]] = {}
    for attachment in attachments:
        if attachment.link is not None:
            for address in attachment.addresses:
                found.setdefault(Family.of(address), (attachment.link, address))
    packets = {}
    for family, (link, address) in sorted(found.items(), key=lambda each: each[0].value):
        version = f"IPv{address.version}"
        packets[f"{version} from pods"] = ForwardedPacket(family=family, input=link, output=uplink, source=address)
        packets[f"{version} to pods"] = ForwardedPacket(family=family, input=uplink, output=link, destination=address)
    return packets
