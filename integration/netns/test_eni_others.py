"""A node's network for addresses of interfaces beside other programs that manage routing: what they flush is put back
in one batch, and what of theirs catches pods' packets is found. The oracle is `ip -j`: which way the kernel would send
a pod's packet.
"""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address

import pytest

from coil.eni.node_plan import PRIMARY_MARK, plan_source_rule
from coild.eni.diversion_watch import LOOK_SECONDS
from integration.netns.eni_world import IN_VPC, LINKS, OUTSIDE, STATE, EniNode, bare_node, watched_node
from integration.patience import wait_until

pytestmark = pytest.mark.kernel

PODS = tuple(map(IPv4Address, ("10.1.0.33", "10.1.1.33", "10.1.16.33")))
"""One of each interface."""
MANY = 200


@dataclass
class World:
    node: EniNode

    def way(self, pod: IPv4Address, to: IPv4Address, *, mark: int = 0) -> str | None:
        """By which link the kernel would send a packet of the pod that is not translated; None: by none."""
        link = str(self.node.attachments[pod].link)
        words = ["get", str(to), "from", str(pod), "iif", link, "mark", str(mark)]
        command = ["ip", "-n", self.node.netns.name, "-json", "route", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return str(json.loads(done.stdout)[0].get("dev")) if done.returncode == 0 else None

    def diverted(self) -> bool:
        """Whether the kernel would send a pod's packet another way, or by none."""
        wanted = [(self.way(pod, IN_VPC), link) for pod, link in zip(PODS, LINKS, strict=True)]
        # What leaves the VPC is translated, and is the primary interface's then, whosever pod it is of.
        wanted += [(self.way(pod, OUTSIDE, mark=PRIMARY_MARK), LINKS[0]) for pod in PODS]
        wanted += [(self.way(PODS[0], pod), str(self.node.attachments[pod].link)) for pod in PODS[1:]]
        return any(found != link for found, link in wanted)

    async def found(self) -> tuple[str, ...]:
        """What coild finds."""
        result = await self.node.kernel.sync(STATE.interfaces, None, pod_table=116, mtu=None)
        return await self.node.kernel.find_diversions(STATE.interfaces, result.links)

    def rules(self) -> list[str]:
        """Those of Coil, of IPv4."""
        found = self.node.netns.read("rule")
        return sorted(json.dumps(each, sort_keys=True) for each in found if each.get("protocol") == "30")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """With a pod on each interface, and watched."""
    async with bare_node() as node, watched_node(node, PODS):
        yield World(node)


async def test_rules_that_are_flushed_come_back_in_one_batch(world: World) -> None:
    """As many as a node may have pods, flushed at once, as systemd-networkd does it when a link appears."""
    node = world.node
    second = STATE.interfaces[1]
    for number in range(MANY):
        await node.node.add_pod(IPv4Address("10.1.128.0") + number, second.interface.id)
    before = world.rules()
    assert len(before) > MANY
    node.kernel.changes.clear()
    await node.kernel.between_comparisons(lambda: node.netns.ip("rule", "flush", "protocol", "30"))
    await asyncio.to_thread(partial(wait_until, lambda: world.rules() == before, what="all rules are back"))
    [restored] = [changes for changes in node.kernel.changes if changes]
    pods = {str(plan_source_rule(IPv4Address("10.1.128.0") + number, second)) for number in range(MANY)}
    assert {f"add {rule}" for rule in pods} < set(restored)
    assert len(restored) == len(before)


@pytest.mark.parametrize(
    "command",
    [
        "rule add priority 100 lookup 77",
        "rule add priority 1300 lookup 77",
        "rule add priority 2000 lookup 77",
        "rule add priority 100 from 10.1.1.32/28 lookup 77",
        "rule add priority 100 from 10.1.0.0/24 lookup 77",
        "rule add priority 100 to 10.1.200.0/24 lookup 77",
        "rule add priority 100 not fwmark 0xca6c lookup 77",
        "rule add priority 100 blackhole",
        "rule add priority 100 from 10.1.16.0/20 prohibit",
        "rule add priority 1300 lookup main",
        "rule add priority 100 goto 32766",
        "route add default via 10.1.16.1 dev ens7 onlink proto dhcp table main",
        "route add 0.0.0.0/1 via 10.1.1.1 dev ens6 onlink table main",
        "route add 10.1.0.0/16 via 10.1.1.1 dev ens6 onlink table main",
        "route add blackhole default table main",
        "route add 10.1.200.0/24 via 10.1.0.1 dev ens5 onlink table 10001",
    ],
)
async def test_what_catches_pods_packets_is_found(world: World, command: str) -> None:
    netns = world.node.netns
    # Main's own default route has a metric, as a DHCP client makes it: another one may come before it.
    netns.ip_batch(
        [
            "route add 10.1.0.1 dev ens5",
            "route add default via 10.1.0.1 dev ens5 metric 512",
            "route delete default via 10.1.0.1 dev ens5 metric 0",
            "route add default via 10.1.1.1 dev ens6 onlink table 77",
        ]
    )
    assert not world.diverted()
    assert await world.found() == ()
    netns.ip(*command.split())
    assert world.diverted(), "the kernel sends packets as before: this is no example"
    [sentence] = await world.found()
    assert sentence.startswith(command.split(maxsplit=1)[0])
    netns.ip(*command.replace(" add ", " delete ").split())
    assert not world.diverted()
    assert await world.found() == ()


@pytest.mark.parametrize(
    "command",
    [
        "rule add priority 100 fwmark 0x4000 lookup 77",
        "rule add priority 100 iif lo uidrange 1000-2000 lookup 77",
        "rule add priority 100 lookup 78",
        "rule add priority 100 lookup main suppress_prefixlength 20",
        "rule add priority 1300 from 10.1.1.32/28 lookup 77",
        "rule add priority 1536 from 10.1.1.33 lookup 77",
        "rule add priority 100 goto 200",
        "route add default via 10.1.16.1 dev ens7 onlink metric 1024 table main",
        "route add 172.17.0.0/16 dev lo table main",
        "route add 10.1.200.0/24 via 10.1.0.1 dev ens5 onlink table main",
    ],
)
async def test_what_leaves_pods_packets_alone_is_not_spoken_of(world: World, command: str) -> None:
    netns = world.node.netns
    netns.ip("route", "add", "default", "via", "10.1.1.1", "dev", "ens6", "onlink", "table", "77")
    netns.ip(*command.split())
    assert not world.diverted()
    assert await world.found() == ()


async def test_it_is_noticed_when_others_change_routing(world: World) -> None:
    node = world.node
    for command in ("rule add priority 100 not from 192.0.2.0/24 prohibit", "route add blackhole 0.0.0.0/1 table main"):
        before = node.node.diversions
        node.netns.ip(*command.split())
        await asyncio.to_thread(
            partial(wait_until, lambda: node.node.diversions, what=f"{command} is found", timeout=LOOK_SECONDS / 2)
        )
        node.netns.ip(*command.replace(" add ", " delete ").split())
        await asyncio.to_thread(
            partial(wait_until, lambda: node.node.diversions == (), what="nothing any more", timeout=LOOK_SECONDS / 2)
        )
        assert before in (None, ())
