"""The agent does nothing on a node whose pods have addresses of network interfaces."""

import asyncio
from ipaddress import IPv4Network

import pytest
import structlog
from structlog.testing import LogCapture

from coil.eni.interface import InterfaceId, NetworkInterface, SubnetId
from coil.eni.node_plan import AttachedInterface, plan_node
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName, MacAddress
from coil.kernel.mark import plan_marks
from coil.kernel.rule import Rule
from coil.netlink.error import NetlinkError
from coil_egress_agent.eip.address_source import LOOK_SECONDS, REFUSAL, AddressSourceGuard, find_refusal
from tests.coil.reconcile.virtual_time import run_virtual

SUBNET = IPv4Network("10.1.0.0/24")


class MemoryRules:
    """The rules of a node."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.broken = False
        self.reads = 0

    async def read(self) -> list[Rule]:
        self.reads += 1
        if self.broken:
            raise NetlinkError("no memory")
        return self.rules


def eni_rules(*, pods: bool) -> list[Rule]:
    """What coild makes, with or without a pod on a second interface."""
    interface = NetworkInterface(
        id=InterfaceId("eni-2"),
        mac=MacAddress("02:00:00:00:00:02"),
        device_number=1,
        subnet=SubnetId("subnet-1"),
        primary=SUBNET[9],
    )
    attached = AttachedInterface(interface=interface, subnet=SUBNET)
    held: list[tuple[IPAddress, InterfaceId]] = [(SUBNET[10], interface.id)] if pods else []
    return list(plan_node([attached], {interface.id: LinkName("eth1")}, held, pod_table=116).rules)


def guarded(kernel: MemoryRules) -> tuple[AddressSourceGuard, LogCapture]:
    lines = LogCapture()
    return AddressSourceGuard(
        kernel.read, log=structlog.wrap_logger(structlog.ReturnLogger(), processors=[lines])
    ), lines


@pytest.mark.parametrize("pods", [False, True])
def test_rules_of_network_interfaces_are_a_reason(pods: bool) -> None:
    assert find_refusal(eni_rules(pods=pods)) == REFUSAL


def test_rules_of_others_and_of_pools_are_none() -> None:
    others = [Rule(family=Family.IPV4, priority=1024, table=254, protocol=4), *plan_marks(LinkName("x"), {}).rules]
    pools = [Rule(family=Family.IPV4, priority=each, table=116, protocol=30) for each in (512, 1024, 1536, 2000)]
    assert find_refusal([*others, *pools]) is None


def test_it_waits_unready_and_says_why_once() -> None:
    async def main() -> None:
        kernel = MemoryRules()
        kernel.rules = eni_rules(pods=True)
        guard, lines = guarded(kernel)
        waiting = asyncio.create_task(guard.wait_until_free())
        await asyncio.sleep(10 * LOOK_SECONDS)
        assert not waiting.done()
        assert guard.missing() == REFUSAL
        assert [entry["reason"] for entry in lines.entries] == [REFUSAL]
        kernel.rules = []
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert waiting.done()
        assert guard.missing() is None

    run_virtual(main)


def test_a_kernel_that_does_not_answer_is_no_permission() -> None:
    async def main() -> None:
        kernel = MemoryRules()
        kernel.broken = True
        guard, _ = guarded(kernel)
        waiting = asyncio.create_task(guard.wait_until_free())
        await asyncio.sleep(LOOK_SECONDS / 2)
        assert not waiting.done()
        assert "no memory" in (guard.missing() or "")
        kernel.broken = False
        await asyncio.sleep(LOOK_SECONDS)
        assert waiting.done()

    run_virtual(main)


def test_one_that_works_already_stops_when_the_rules_come() -> None:
    async def main() -> None:
        kernel = MemoryRules()
        guard, _ = guarded(kernel)
        await guard.wait_until_free()
        stopped: list[str] = []
        watching = asyncio.create_task(guard.watch(stopped.append))
        await asyncio.sleep(3 * LOOK_SECONDS)
        kernel.broken = True
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert stopped == []
        kernel.broken, kernel.rules = False, eni_rules(pods=False)
        await asyncio.sleep(5 * LOOK_SECONDS)
        assert stopped == [REFUSAL]
        assert guard.missing() == REFUSAL
        watching.cancel()
        await asyncio.wait({watching})

    run_virtual(main)
