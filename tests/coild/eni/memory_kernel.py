"""The kernel in memory, as far as the node's network for interfaces asks it. An `EniKernel`."""

import asyncio
from collections.abc import Collection, Mapping
from errno import ENOBUFS

from coil.eni.interface import InterfaceId
from coil.eni.node_plan import SHARED_CLAIM, AttachedInterface, plan_node
from coil.kernel.family import IPAddress
from coil.kernel.link import Link, LinkName
from coil.kernel.nft_element import Elements
from coil.kernel.nft_table import NftTable
from coil.kernel.rule import Rule
from coil.netlink.eni_link import NodeSync
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.node_watch import Listener, RuleEvent
from coil.nft.netfilter import NftError


class MemoryEniKernel:
    """Links are what `links` says; a comparison of them changes nothing."""

    def __init__(self) -> None:
        self.links: dict[InterfaceId, Link] = {}
        self.addresses: set[IPAddress] = set()
        """Of the node's links."""
        self.rules: set[Rule] = set()
        self.table: tuple[NftTable, Elements] | None = None
        self.calls: list[str] = []
        self.refuse: set[str] = set()
        """Calls that fail."""
        self.deaf: set[LinkName] = set()
        """Links on which it does not listen to routers."""
        self.diversions: tuple[str, ...] = ()
        self.looks: list[tuple[InterfaceId, ...]] = []
        """Each for diversions, with the interfaces that had links."""
        self.listener: Listener | None = None
        self.hears_pods = True
        self._table_changed = asyncio.Event()

    def _call(self, name: str, error: NetlinkError | NftError | None = None) -> None:
        self.calls.append(name)
        if name in self.refuse:
            raise error or KernelError(doing=name, errno=ENOBUFS)

    async def keep_default_route(self) -> None:
        self._call("keep default route")

    async def keeps_advertised_routes(self, link: LinkName) -> bool:
        return link not in self.deaf

    async def sync(
        self,
        interfaces: Collection[AttachedInterface],
        pods: Collection[tuple[IPAddress, InterfaceId]] | None,
        *,
        pod_table: int,
        mtu: int | None,
    ) -> NodeSync:
        self._call("sync")
        self.deaf.clear()
        names = {interface: link.name for interface, link in self.links.items()}
        wanted = {*plan_node(interfaces, names, pods or (), pod_table=pod_table).rules}
        if pods is None:
            wanted = {rule for rule in wanted if SHARED_CLAIM.covers(rule)}
            wanted |= {rule for rule in self.rules if not SHARED_CLAIM.covers(rule)}
        changes = tuple(sorted(map(str, wanted ^ self.rules)))
        self.rules = wanted
        return NodeSync(links=dict(self.links), changes=changes, addresses=frozenset(self.addresses))

    async def find_diversions(
        self, interfaces: Collection[AttachedInterface], links: Mapping[InterfaceId, Link]
    ) -> tuple[str, ...]:
        self.looks.append(tuple(sorted(each.interface.id for each in interfaces if each.interface.id in links)))
        if "diversions" in self.refuse:
            raise KernelError(doing="look", errno=ENOBUFS)
        return self.diversions

    async def add_rule(self, rule: Rule) -> None:
        self._call("add")
        self.rules.add(rule)
        self._tell(RuleEvent(rule, gone=False))

    async def delete_rule(self, rule: Rule) -> None:
        self._call("delete")
        self.rules.discard(rule)
        self._tell(RuleEvent(rule, gone=True))

    async def has_rule(self, rule: Rule) -> bool:
        return rule in self.rules

    async def sync_table(self, table: NftTable, elements: Elements) -> bool:
        self._call("table", NftError(doing="write the table", reason="no memory"))
        different = self.table != (table, elements)
        self.table = table, elements
        return different

    async def table_changed(self) -> None:
        await self._table_changed.wait()
        self._table_changed.clear()

    async def watch(self, listener: Listener) -> bool:
        self.listener = listener
        return self.hears_pods

    def take_rule(self, rule: Rule) -> None:
        """Somebody else deletes it."""
        self.rules.discard(rule)
        self._tell(RuleEvent(rule, gone=True))

    def take_table(self) -> None:
        """Somebody else deletes the table."""
        self.table = None
        self._table_changed.set()

    def _tell(self, event: RuleEvent) -> None:
        if self.listener is not None:
            self.listener(event)
