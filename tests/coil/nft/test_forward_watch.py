"""Packet filters of others that drop packets are told once, in each place, and told to be gone."""

import asyncio
from dataclasses import dataclass, field
from ipaddress import ip_address

from prometheus_client import CollectorRegistry, Gauge

from coil.kernel.family import Family
from coil.kernel.link import LinkName
from coil.kernel.packet_filter import (
    FilterChain,
    FilterRule,
    FilterVerdict,
    ForwardedPacket,
    ForwardHook,
    LinkMatch,
    Side,
)
from coil.nft.forward_watch import LOOK_SECONDS, ForwardWatch
from coil.nft.netfilter import NftError
from tests.coild.scene import LOG, end

UPLINK, VETH = LinkName("eth0"), LinkName("veth1")
LABEL = "iptables (legacy) chain FORWARD"
PACKETS = {
    f"{family.name} from pods": ForwardedPacket(family=family, input=VETH, output=UPLINK, source=ip_address(source))
    for family, source in ((Family.IPV4, "10.1.0.7"), (Family.IPV6, "fd01::7"))
}


def forward_hook(*families: Family, rules: tuple[FilterRule, ...] = ()) -> ForwardHook:
    chain = FilterChain(rules=rules, policy=FilterVerdict.DROP)
    return ForwardHook(label=LABEL, families=frozenset(families), base="F", chains={"F": chain})


@dataclass
class Scene:
    """A watch, and a kernel that has these filters."""

    filters: list[ForwardHook] = field(default_factory=list)
    packets: dict[str, ForwardedPacket] = field(default_factory=lambda: dict(PACKETS))
    reads: int = 0
    trouble: str = ""
    told: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.registry = CollectorRegistry()
        self.watch = ForwardWatch(
            self._packets,
            self._hooks,
            gauge=Gauge("dropped", "Of the test.", registry=self.registry),
            note=self.told.append,
            errors=(NftError,),
            log=LOG,
        )

    async def _packets(self) -> dict[str, ForwardedPacket]:
        return self.packets

    async def _hooks(self) -> list[ForwardHook]:
        self.reads += 1
        if self.trouble:
            raise NftError(doing="look", reason=self.trouble)
        return self.filters

    async def look(self) -> tuple[str, ...] | None:
        await self.watch.look()
        return self.watch.dropped

    @property
    def gauge(self) -> float | None:
        return self.registry.get_sample_value("dropped")


async def test_a_filter_that_drops_is_told_once_and_its_end_is_noticed() -> None:
    scene = Scene([forward_hook(Family.IPV4)])
    expected = (f"IPV4 from pods: {LABEL}: its policy drops it",)
    assert [await scene.look() for _ in range(3)] == 3 * [expected]
    assert scene.told == [expected]
    assert scene.gauge == 1

    scene.filters = []
    assert await scene.look() == ()
    assert scene.told == [expected, ()]
    assert scene.gauge == 0


async def test_another_reason_is_told_again() -> None:
    scene = Scene([forward_hook(Family.IPV4)])
    await scene.look()
    scene.filters = [forward_hook(Family.IPV6)]
    await scene.look()
    assert [each[0].split(":")[0] for each in scene.told] == ["IPV4 from pods", "IPV6 from pods"]


async def test_where_nothing_is_forwarded_nothing_is_read() -> None:
    scene = Scene([forward_hook(*Family)], packets={})
    assert (await scene.look(), scene.reads, scene.told) == ((), 0, [()])


async def test_what_cannot_be_read_leaves_what_was_found() -> None:
    scene = Scene([forward_hook(Family.IPV4)])
    await scene.look()
    scene.trouble = "no answer"
    task = asyncio.create_task(scene.watch.run())
    await asyncio.sleep(5 * LOOK_SECONDS)
    assert scene.reads > 4
    assert scene.gauge == 1
    scene.trouble, scene.filters = "", []
    await asyncio.sleep(2 * LOOK_SECONDS)
    assert scene.gauge == 0
    await end([task])


async def test_what_an_admin_lets_pass_is_not_told() -> None:
    """As docs/troubleshooting.md has it: packets of the pods' links are accepted."""
    accept = tuple(
        FilterRule(matches=(LinkMatch(side, "veth", is_prefix=True),), verdict=FilterVerdict.ACCEPT) for side in Side
    )
    assert await Scene([forward_hook(*Family, rules=accept)]).look() == ()
