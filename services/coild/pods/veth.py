"""Wires pods with a veth each: the wiring of address pools, and of any source whose pods are routed to one by one.

    attachment ─► coil.podnet.plan ─► coil.netlink: veth, addresses, routes, neighbours, sysctls

What the node needs for it: forwarding, and a rule that looks up the table of routes to pods (`prepare`).

Recovery reads the kernel, which is the database:

    aliases of links ─► whose veth it is ┐
    pod table ────────► its addresses    ├─► attachments
    the pod itself ───► if that says too little

Veths in the making are gone by then (`coil.netlink.link`), so a link with an alias of ours is a finished ADD,
even if its routes are missing: others have emptied tables before. The pod still has its addresses then. But a pod may
give itself any address, where it is allowed to; so what it says counts only as far as the ledger bears it out, and
after what the routes say, which only the node writes.

Routes to pods that others removed are put back. Where somebody has put another route in the place of one, that route
stays, and is reported: so a mistake of ours never takes an address away from whoever has it.
"""

from collections.abc import Collection, Mapping
from functools import partial

from structlog.typing import FilteringBoundLogger

from coil.ipam.occupancy import AttachmentKey
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkGroup, LinkName, parse_link_name
from coil.kernel.route import Route
from coil.netlink.error import NetlinkError
from coil.netlink.host import NetnsPath, PodLink
from coil.podnet.host_link import PodAlias, derive_mac
from coil.podnet.plan import (
    HostAddresses,
    PodPlan,
    RoutePolicy,
    plan_pod,
    plan_pod_neighbours,
    plan_pod_routes,
    plan_rules,
)
from coild.model.address_source import NONE_ENDED, AddressSource, Ended, Exclusively
from coild.model.attachment import Attachment, InvalidPodError, alias_key, first_of_each_family, host_link_name
from coild.model.pod_network import PodNetwork
from coild.model.repairs import Repair, Repairs


class VethWiring:
    """Implements `coild.model.address_source.PodWiring`. One per process; `mtu` in bytes."""

    def __init__(
        self,
        network: PodNetwork,
        *,
        mtu: int,
        gateways: HostAddresses,
        policy: RoutePolicy,
        compat_calico: bool = False,
        repairs: Repairs | None = None,
        log: FilteringBoundLogger,
    ) -> None:
        self._network = network
        self._repairs = repairs
        self._prepared = False
        self._mtu = mtu
        self._gateways = gateways
        self._policy = policy
        self._compat_calico = compat_calico
        self._log = log
        self._families: set[Family] = set()
        """Those that pods have had."""

    async def prepare(self) -> None:
        """Forwarding on, and the lookup of the pod table in place, where the policy has it made here.

        A family that no pod has is left as it is: to forward IPv6 has side effects on a node.
        """
        written = await self._network.ensure_forwarding(self._families)
        rules, added = plan_rules(self._policy), 0
        if rules and (changes := await self._network.ensure_rules(rules)):
            self._log.info("rules set", added=len(changes.adds), removed=len(changes.deletes))
            added = len(changes.adds)
        if self._prepared:
            self._count(Repair.FORWARDING, written)
            self._count(Repair.RULES, added)
        self._prepared = True

    # --- one pod

    def plan(self, attachment: Attachment) -> PodPlan:
        """See `PodWiring`."""
        if attachment.alias is None:
            raise InvalidPodError("a pod without an alias could not be recognised after a restart")
        try:
            return plan_pod(
                host_name=host_link_name(attachment, compat_calico=self._compat_calico),
                ifname=parse_link_name(attachment.key.ifname),
                alias=attachment.alias,
                addresses=(attachment.ipv4, attachment.ipv6),
                mtu=self._mtu,
                gateways=self._gateways,
                policy=self._policy,
            )
        except ValueError as error:
            raise InvalidPodError(str(error)) from error

    async def attach(self, attachment: Attachment, plan: PodPlan, netns: NetnsPath) -> Attachment:
        """See `PodWiring`."""
        self._families.update(map(Family.of, attachment.addresses))
        await self._network.attach_pod(plan, netns)
        return attachment

    async def check(self, attachment: Attachment, plan: PodPlan, netns: NetnsPath) -> None:
        """See `PodWiring`."""
        await self._network.check_pod(plan, netns)

    async def detach(self, attachment: Attachment) -> None:
        """See `PodWiring`."""
        if attachment.link is not None:
            await self._network.detach_pod(attachment.link)

    # --- all pods

    async def aliases(self) -> frozenset[PodAlias]:
        """See `PodWiring`."""
        return frozenset(link.alias for link in await self._network.pod_links())

    async def recover(self, source: AddressSource, ended: Ended = NONE_ENDED) -> list[Attachment]:
        """See `PodWiring`.

        A link of which neither the routes nor the pod tell an address is what an unfinished ADD left; it is removed.
        """
        routed: dict[LinkName, list[IPAddress]] = {}
        for route in await self._network.pod_routes(self._policy.pod_table):
            if route.device is not None and route.destination.num_addresses == 1:
                routed.setdefault(route.device, []).append(route.destination.network_address)
        links = [link for link in await self._network.pod_links() if source.owns(link.alias)]
        doubtful = [link.name for link in links if {*map(Family.of, routed.get(link.name, ()))} < {*Family}]
        own = await self._network.pod_addresses(doubtful) if doubtful else {}
        certain: dict[AttachmentKey, Attachment] = {}
        claimed: dict[AttachmentKey, Attachment] = {}
        for link in links:
            if link.name in routed:
                certain[alias_key(link.alias)] = _attachment(link.name, link.alias, routed[link.name])
            elif own.get(link.name):
                known = [address for address in own[link.name] if source.recognizes(link.alias.tag, address)]
                # One address that is known is enough to find the other by, and two need not belong together.
                addresses = known[:1] or own[link.name]
                claimed[alias_key(link.alias)] = _attachment(link.name, link.alias, addresses)
                self._log.warning("no route leads to a pod; using the addresses on its interface", link=link.name)
            else:
                self._log.warning("removing the remains of an unfinished ADD", link=link.name)
                await self._network.detach_pod(link.name)
        attachments = [*certain.values(), *(claim for key, claim in claimed.items() if key not in certain)]
        self._families.update(Family.of(address) for each in attachments for address in each.addresses)
        await self._mark(attachments, {link.name: link for link in links})
        await source.recover(attachments, ended)
        return [
            _completed(attachment, source.holding(attachment.key), own.get(attachment.link or LinkName(""), ()))
            for attachment in attachments
        ]

    async def restore(self, attachments: Collection[Attachment], exclusively: Exclusively) -> None:
        """See `PodWiring`. Takes one look at the pod table, and one at the links."""
        wanted = {
            attachment.key: plan_pod_routes(attachment.link, attachment.addresses, self._policy)
            for attachment in attachments
            if attachment.link is not None
        }
        table = await self._network.pod_routes(self._policy.pod_table)
        # Whatever their metric and protocol.
        there = {(route.destination, route.device) for route in table}
        taken = {route.destination for route in table}
        lost = {
            key: [route for route in routes if (route.destination, route.device) not in there]
            for key, routes in wanted.items()
        }
        refused = [route for routes in lost.values() for route in routes if route.destination in taken]
        restored: list[Route] = []

        async def put_back(routes: list[Route]) -> None:
            try:
                additions = await self._network.add_routes(routes)
            except NetlinkError as error:
                self._log.warning("routes to a pod are missing", link=routes[0].device, error=str(error))
                return
            restored.extend(additions.added)
            refused.extend(additions.refused)

        for key, routes in lost.items():
            if missing := [route for route in routes if route.destination not in taken]:
                await exclusively(key, partial(put_back, missing))
        self._count(Repair.POD_ROUTES, len(restored))
        if restored:
            self._log.warning("routes to pods were missing from the pod table and are back", routes=len(restored))
        for route in refused:
            self._log.warning("another's route has the place of a route to a pod", missing=str(route))
        try:
            await self._restore_links(attachments)
        except NetlinkError as error:
            self._log.warning("neighbours or groups of pods' links may be missing", error=str(error))

    async def _restore_links(self, attachments: Collection[Attachment]) -> None:
        links = {link.name: link for link in await self._network.pod_links()}
        await self._mark(attachments, links)
        # Another program's pods have hardware addresses that only they know.
        own = {link.name for link in links.values() if link.mac == derive_mac(link.name, end="host")}
        neighbours = [
            neighbour
            for attachment in attachments
            if attachment.link is not None and attachment.link in own
            for neighbour in plan_pod_neighbours(attachment.link, attachment.addresses)
        ]
        if restored := await self._network.ensure_neighbours(neighbours):
            self._log.info("neighbours of pods were missing and are back", neighbours=restored)

    async def _mark(self, attachments: Collection[Attachment], links: Mapping[LinkName, PodLink]) -> None:
        """Have the links in their group, as those of another program, or of an earlier coild, are not."""
        own = {attachment.link for attachment in attachments}
        unmarked = [link.name for link in links.values() if link.name in own and link.group != LinkGroup.POD]
        if unmarked:
            await self._network.mark_pod_links(unmarked)
            self._log.info("links of pods marked", links=len(unmarked))

    def _count(self, kind: Repair, number: int) -> None:
        if self._repairs is not None:
            self._repairs.count(kind, number)


def _attachment(link: LinkName, alias: PodAlias, addresses: Collection[IPAddress]) -> Attachment:
    key = alias_key(alias)
    return Attachment(
        key=key,
        pod=None,
        addresses=_ipv4_first(addresses),
        alias=alias,
        link=link,
        container=key.container_id,
    )


def _completed(attachment: Attachment, held: Collection[IPAddress], own: Collection[IPAddress]) -> Attachment:
    """With the address of the other family, if the pod has the very one that the ledger has for it."""
    confirmed = [address for address in held if address in own]
    if not confirmed or attachment.link is None or attachment.alias is None:
        return attachment
    return _attachment(attachment.link, attachment.alias, (*attachment.addresses, *confirmed))


def _ipv4_first(addresses: Collection[IPAddress]) -> tuple[IPAddress, ...]:
    return first_of_each_family(sorted(addresses, key=Family.of))
