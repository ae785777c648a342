"""A node's kernel in memory: what is in it, in which order it came, what it refuses, and how long it takes."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_interface

from coil.eip.eip_set import CLOSED_WORD
from coil.kernel.family import Family, IPAddress
from coil.kernel.flow import Flow
from coil.kernel.link import LinkName, MacAddress, ParentLink
from coil.kernel.nft_element import ElementChanges, ElementKey, Elements, ElementValue, SetName
from coil.kernel.vxlan import OverlayPeer, Vxlan
from coil.kernel.wireguard import PublicKey, WireGuard, WireGuardPeer
from coil.netlink.error import NetlinkError
from coil.nft.netfilter import NftError
from coil_egress_agent.eip.kernel import bounded

KEYS = tuple(PublicKey(f"{letter * 42}A=") for letter in "abcdefgh")
PARENT = ParentLink(
    name=LinkName("eth0"),
    index=2,
    mac=MacAddress("02:00:00:00:00:01"),
    mtu=1500,
    interfaces=(ip_interface("10.6.0.1/16"), ip_interface("fd06::1/64")),
)


@dataclass
class Journal:
    """What was done, in order. `refuse` names the calls that fail, `stall` those that take seconds."""

    entries: list[tuple[float, str, object]] = field(default_factory=list)
    refuse: set[str] = field(default_factory=set)
    stall: dict[str, float] = field(default_factory=dict)

    async def enter(self, call: str, what: object = None) -> None:
        await asyncio.sleep(self.stall.get(call, 0.001))
        if call in self.refuse:
            error = NftError if call in {"sync", "change", "refresh", "let pass"} else NetlinkError
            raise NftError(doing=call, reason="no") if error is NftError else NetlinkError(f"{call}: no")
        self.note(call, what)

    def note(self, call: str, what: object = None) -> None:
        self.entries.append((asyncio.get_running_loop().time(), call, what))

    def calls(self) -> list[str]:
        return [call for _, call, _ in self.entries]

    def clear(self) -> None:
        self.entries.clear()


class MemoryOverlay:
    """Implements `Overlay` with a line for the mesh and one for the EIPs."""

    def __init__(self, journal: Journal) -> None:
        self.tunnel: Vxlan | None = None
        self.peers: tuple[OverlayPeer, ...] = ()
        self.wireguard: WireGuard | None = None
        self.wireguard_peers: tuple[WireGuardPeer, ...] = ()
        self.keys = iter(KEYS)
        """Of links of WireGuard, one after the other."""
        self.key = PublicKey("")
        self.marks: dict[int, tuple[IPAddress, ...]] = {}
        self.eips: frozenset[IPAddress] = frozenset()
        self.has_eip_device = False
        self._journal = journal
        self._mesh = asyncio.Lock()
        self._eips = asyncio.Lock()

    async def ensure_sysctls(self, families: Collection[Family]) -> None:
        async with self._eips:
            await self._journal.enter("sysctls", sorted(families))

    async def parent_of(self, address: IPAddress) -> ParentLink:
        async with self._eips:
            await self._journal.enter("parent", address)
        if not PARENT.has(address):
            raise NetlinkError(f"no link has {address}")
        return PARENT

    async def ensure_tunnel(self, vxlan: Vxlan) -> bool:
        async with self._mesh:
            await self._journal.enter("tunnel", vxlan)
            made, self.tunnel = self.tunnel is None, vxlan
            return made

    async def sync_peers(self, peers: Sequence[OverlayPeer]) -> object:
        async with self._mesh:
            await self._journal.enter("peers", len(peers))
            self.peers = tuple(peers)
            return None

    async def ensure_wireguard(self, wireguard: WireGuard) -> PublicKey:
        async with self._mesh:
            await self._journal.enter("wireguard", wireguard)
            if self.wireguard is None:
                self.key, self.wireguard_peers = next(self.keys), ()
            self.wireguard = wireguard
            return self.key

    async def sync_wireguard_peers(self, peers: Sequence[WireGuardPeer]) -> object:
        async with self._mesh:
            await self._journal.enter("wireguard peers", len(peers))
            self.wireguard_peers = tuple(peers)
            return None

    async def read_wireguard_peers(self) -> Sequence[WireGuardPeer]:
        async with self._mesh:
            await self._journal.enter("read wireguard peers")
            return self.wireguard_peers

    async def remove_wireguard(self) -> object:
        async with self._mesh:
            self.wireguard, self.wireguard_peers = None, ()
            return None

    async def sync_marks(self, paths: Mapping[int, Collection[IPAddress]]) -> object:
        async with self._mesh:
            await self._journal.enter("marks", sorted(paths))
            self.marks = {mark: tuple(addresses) for mark, addresses in paths.items()}
            return None

    async def ensure_eip_device(self) -> None:
        async with self._eips:
            await self._journal.enter("device")
            self.has_eip_device = True

    async def sync_eips(self, eips: Collection[IPAddress]) -> object:
        wanted = frozenset(eips)
        async with self._eips:
            await self._journal.enter("eips", sorted(map(str, wanted)))
            if not self.has_eip_device:
                raise NetlinkError("there is no link egress.eip")
            changes, self.eips = self.eips ^ wanted, wanted
            return changes

    async def answer(self, _is_held: Callable[[IPAddress], bool]) -> None:
        await asyncio.Event().wait()

    async def announce(self, addresses: Collection[IPAddress], *, is_held: Callable[[IPAddress], bool]) -> object:
        held = sorted(str(address) for address in addresses if is_held(address))
        async with self._eips:
            await self._journal.enter("announce", held)
            return None

    async def changed(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def clean_up(self) -> None:
        async with self._eips, self._mesh:
            await self._journal.enter("clean overlay")


class MemoryFormerState:
    """Implements `FormerState`: `found` is what there is, and of that rules of others use the sets `used`."""

    def __init__(self, journal: Journal, *found: str) -> None:
        self._journal = journal
        self.found = list(found)
        self.used: set[str] = set()

    async def find(self) -> Sequence[str]:
        await self._journal.enter("find former state")
        return list(self.found)

    async def remove(self) -> Sequence[str]:
        await self._journal.enter("remove former state")
        self.found = [each for each in self.found if each.removeprefix("IP set ") in self.used]
        return sorted(self.used)


class MemoryFlows:
    """Implements `Flows`."""

    def __init__(self, journal: Journal) -> None:
        self.flows: list[Flow] = []
        self.more = False
        self._journal = journal

    async def read(self, wanted: Callable[[IPAddress], bool], limit: int) -> tuple[tuple[Flow, ...], bool]:
        await self._journal.enter("flows")
        found = tuple(flow for flow in self.flows if wanted(flow.source.address))
        return found[:limit], self.more

    async def forget(self, flows: Sequence[Flow]) -> None:
        await self._journal.enter("forget", list(flows))

    async def probe(self, flows: Sequence[Flow], *, random: Callable[[], int], mark: int) -> int:
        await self._journal.enter("probe", list(flows))
        return len(flows)


class MemoryTables:
    """Implements `Tables`; `tables_contract` asks the same of it and of a kernel. Times are the loop's."""

    def __init__(self, journal: Journal) -> None:
        self.elements: dict[SetName, dict[ElementKey, ElementValue]] = {}
        self.exists = False
        self.alive_until = 0.0
        self.current_until = 0.0
        self._journal = journal

    @property
    def current(self) -> bool:
        """Whether unknown sources may pass."""
        return asyncio.get_running_loop().time() < self.current_until

    @property
    def alive(self) -> bool:
        return asyncio.get_running_loop().time() < self.alive_until

    def of(self, name: str) -> dict[ElementKey, ElementValue]:
        """What is in the set, but for what is always there."""
        words = next((found for key, found in self.elements.items() if key.name == name), {})
        return {key: value for key, value in words.items() if key != CLOSED_WORD}

    async def sync(self, elements: Elements) -> bool:
        await self._journal.enter("sync", None)
        wanted = {name: dict(words) for name, words in elements.items() if words}
        different, self.elements = wanted != self.elements or not self.exists, wanted
        self.exists = True
        return different

    async def change(self, changes: ElementChanges) -> None:
        await bounded(self._journal.enter("change", len(changes)))
        self._need_tables("change")
        found = {name: dict(words) for name, words in self.elements.items()}
        for name, keys in changes.deletes.items():
            for key in keys:
                if key not in found.get(name, {}):
                    raise NftError(doing="change", reason=f"{key} is not there")
                del found[name][key]
        for name, words in changes.anew.items():
            found[name] = dict(words)
        for name, added in changes.adds.items():
            words = found.setdefault(name, {})
            for key, value in added.items():
                if words.setdefault(key, value) != value:
                    raise NftError(doing="change", reason=f"{key} is there with another value")
        self.elements = {name: words for name, words in found.items() if words}

    async def changed(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def refresh(self, remaining: Callable[[], float]) -> None:
        # Asked when its turn has come, as the kernel counts from then.
        await self._journal.enter("refresh")
        self._need_tables("refresh")
        self.alive_until = asyncio.get_running_loop().time() + max(0.0, remaining())

    async def let_pass(self, seconds: float) -> None:
        await self._journal.enter("let pass", seconds)
        self._need_tables("let pass")
        self.current_until = asyncio.get_running_loop().time() + seconds

    async def clean_up(self) -> None:
        await self._journal.enter("clean tables")
        self.elements, self.exists, self.alive_until, self.current_until = {}, False, 0.0, 0.0

    def _need_tables(self, doing: str) -> None:
        if not self.exists:
            raise NftError(doing=doing, reason="No such file or directory")
