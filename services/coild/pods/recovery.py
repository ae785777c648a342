"""Which attachments the kernel holds: what `coild.pods.pod_service` starts with.

    aliases of links ─► whose veth it is ┐
    pod table ────────► its addresses    ├─► attachments
    the pod itself ───► if that says too little

Veths in the making are gone by now (`coil.netlink.link`), so a link with an alias of ours is a finished ADD, also
when its routes are missing: others have emptied tables before. The pod still has its addresses then. But a pod may give
itself any address, where it is allowed to; so what it says counts only as far as the books bear it out, and after what
the routes say, which only the node writes.
"""

from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv4Address

from structlog.typing import FilteringBoundLogger

from coil.crd.names import PoolName
from coil.ipam.attachment import AttachmentKey, ContainerId
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName
from coil.kernel.route import Route
from coil.netlink.host import PodLink
from coild.model.address_source import AddressSource, HeldAddresses, PodAddresses
from coild.pods.pod_network import PodNetwork


@dataclass(frozen=True, slots=True)
class Attachment:
    """A veth that exists, and the addresses of its pod. `network` is the name in the configuration that it was added
    with, "" where an earlier process did that.
    """

    host_name: LinkName
    addresses: PodAddresses
    network: str = ""


async def recover_attachments(
    network: PodNetwork, source: AddressSource, table: Collection[Route], *, log: FilteringBoundLogger
) -> dict[AttachmentKey, Attachment]:
    """Find the attachments, `table` being the pod table, and have the source take them into its books.

    A link of which neither the routes nor the pod tell an address is what an unfinished ADD has left; it is removed.
    """
    routed: dict[LinkName, list[IPAddress]] = {}
    for route in table:
        if route.device is not None and route.destination.num_addresses == 1:
            routed.setdefault(route.device, []).append(route.destination.network_address)
    links = [link for link in await network.pod_links() if link.alias.pool]  # else another plugin's: egress-only
    doubtful = [link.name for link in links if {*map(Family.of, routed.get(link.name, ()))} < {*Family}]
    own = await network.pod_addresses(doubtful) if doubtful else {}
    certain: dict[AttachmentKey, Attachment] = {}
    claimed: dict[AttachmentKey, Attachment] = {}
    for link in links:
        pool = PoolName(link.alias.pool)
        if link.name in routed:
            certain[_key(link)] = Attachment(link.name, _pick(pool, routed[link.name]))
        elif own.get(link.name):
            known = [address for address in own[link.name] if source.recognizes(pool, address)]
            # One address that is known is enough to find the other by, and two need not belong together.
            claimed[_key(link)] = Attachment(link.name, _pick(pool, known[:1] or own[link.name]))
            log.warning("no route leads to a pod; it has been asked for its addresses", link=link.name)
        else:
            log.warning("removing the remains of an unfinished ADD", link=link.name)
            await network.detach_pod(link.name)
    attachments = certain | {key: claim for key, claim in claimed.items() if key not in certain}
    await source.recover([HeldAddresses(key, attachment.addresses) for key, attachment in attachments.items()])
    return {
        key: _completed(attachment, source.holding(key), own.get(attachment.host_name, ()))
        for key, attachment in attachments.items()
    }


def _key(link: PodLink) -> AttachmentKey:
    return AttachmentKey(ContainerId(link.alias.container_id), link.alias.ifname)


def _pick(pool: PoolName, addresses: Collection[IPAddress]) -> PodAddresses:
    """The first of each family."""
    ipv4 = next((address for address in addresses if isinstance(address, IPv4Address)), None)
    ipv6 = next((address for address in addresses if not isinstance(address, IPv4Address)), None)
    return PodAddresses(pool, ipv4, ipv6)


def _completed(attachment: Attachment, held: PodAddresses | None, own: Collection[IPAddress]) -> Attachment:
    """With the address of the other family, if the pod has the very one that the books have for it."""
    if held is None:
        return attachment
    confirmed = [address for address in held.present if address in own]
    found = attachment.addresses
    return Attachment(attachment.host_name, _pick(found.pool, (*found.present, *confirmed)))
