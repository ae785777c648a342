"""The demo's EIP gateway loses the node of the EIP under running transfers, and gets it back.

Each claim is checked against the server's sockets, a capture on the link and the gateway's status. The first that does
not hold raises DemoError, or AssertionError where something was waited for in vain.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from integration.demo.eip_cast import GATEWAYS, PATIENCE, Cast, show_gateway
from integration.demo.exchange import Exchange, connect
from integration.demo.narration import DemoError, print_table, step
from integration.eip.announcement import Announcements
from integration.eip.flow import SPACING, Flow
from integration.eip.node import StageNode
from integration.eip.solicitor import Solicitor
from integration.patience import wait_until

SIZE = 6 << 20
"""Bytes each way of a transfer."""
SECONDS = 8.0
"""What a transfer takes when nothing happens."""
ROUNDS = 50
"""How often the server asks for the EIPs after the lost node's return, before it is said to have got none back."""
_BUSY = "this machine is too busy to show it"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is under way while the node is lost, and what is said on the link."""

    heard: Announcements
    asking: Solicitor
    exchanges: list[Exchange]
    flows: list[Flow]


def show_move(cast: Cast) -> None:
    """The node of the EIP is lost while transfers run, and comes back."""
    lost = cast.world.node(cast.policy.wait_placed())
    [heir] = [cast.world.node(name) for name in GATEWAYS if name != lost.name]
    with ExitStack() as stack:
        traffic = step(
            f"a transfer begins over TCP in each family, {SIZE >> 20} MiB up and down at once, for {SECONDS:.0f} s",
            lambda: stack.enter_context(under_way(cast, lost)),
        )
        began = time.monotonic()
        step(
            f"{lost.name} loses its power, without a goodbye, until {heir.name} has the EIP and answers come",
            lambda: lose(cast, traffic, lost=lost, heir=heir),
        )
        step("the transfers go on to their end", lambda: finish(traffic))
        check_move(cast, traffic, lost=lost, heir=heir)
        print_move(cast, traffic, since=began)
        print(f"    On the link, {lost.name} announced the EIP until {heir.name} did, and never again.\n", flush=True)
        show_gateway(cast)
        step(
            f"{lost.name} is back and ready to carry addresses; the EIP stays with {heir.name}",
            lambda: bring_back(cast, traffic, lost=lost, heir=heir),
        )


@contextmanager
def under_way(cast: Cast, holder: StageNode) -> Iterator[Traffic]:
    """Transfers, a question every 10 ms over UDP in each family, and the server asking who has the EIPs.

    Both ends of a transfer have something to say here. A pod that only listens is made to speak by its node, so that
    the new node learns of its connection: `integration/eip/test_download.py`.
    """
    world, eips = cast.world, cast.eips.values()
    with ExitStack() as stack:
        heard = stack.enter_context(world.announcements())
        asking = stack.enter_context(Solicitor(world.server.netns, world.server.addresses, *eips))
        addresses = world.server.addresses.values()
        exchanges = [stack.enter_context(begin_exchange(cast, address)) for address in addresses]
        flows = [stack.enter_context(Flow(cast.chosen, world.server, address)) for address in addresses]
        directions = [direction for exchange in exchanges for direction in exchange.directions]
        wait_until(lambda: all(direction.arrived for direction in directions), what="bytes arrive, up and down")
        wait_until(lambda: all(flow.answers for flow in flows), what="questions over UDP are answered")
        for eip in eips:
            heard.await_last(eip, holder.name)
        yield Traffic(heard, asking, exchanges, flows)


def begin_exchange(cast: Cast, address: str) -> Exchange:
    pod, server, seen = connect(cast.chosen, cast.world.server, address)
    return Exchange(pod, server, upload=SIZE, download=SIZE, seconds=SECONDS, seen=seen)


def lose(cast: Cast, traffic: Traffic, *, lost: StageNode, heir: StageNode) -> None:
    """Return when the heir serves. Raises DemoError if a transfer was over before the loss."""
    if (holder := cast.policy.node) != lost.name:
        raise DemoError(f"{holder or 'no node'} has the EIP before {lost.name} was lost, whose lease ran out: {_BUSY}")
    lost.die()
    directions = [direction for exchange in traffic.exchanges for direction in exchange.directions]
    if any(direction.complete for direction in directions):
        raise DemoError(f"a transfer was over before {lost.name} was lost: {_BUSY}")
    for eip in cast.eips.values():
        traffic.heard.await_last(eip, heir.name)
    for flow in traffic.flows:
        flow.await_answer()


def finish(traffic: Traffic) -> None:
    for exchange in traffic.exchanges:
        exchange.finish(PATIENCE)


def check_move(cast: Cast, traffic: Traffic, *, lost: StageNode, heir: StageNode) -> None:
    """Raises DemoError unless the server saw nobody but the EIP, and one node had it after the other."""
    for eip, exchange, flow in zip(cast.eips.values(), traffic.exchanges, traffic.flows, strict=True):
        if strangers := {exchange.seen, *(answer.seen for answer in flow.answers)} - {eip}:
            raise DemoError(f"the server saw the pod as {', '.join(sorted(strangers))}, and not only as {eip}")
    check_holder(cast, traffic, lost=lost, heir=heir)


def check_holder(cast: Cast, traffic: Traffic, *, lost: StageNode, heir: StageNode) -> None:
    """Raises DemoError unless the EIP is the heir's, and was nobody else's since it was no longer the lost node's."""
    for eip in cast.eips.values():
        if (announcers := traffic.heard.ports(eip)) != [lost.name, heir.name]:
            raise DemoError(f"{eip} was announced by {', '.join(announcers)}, and not by {lost.name}, then {heir.name}")
        if (holders := cast.gateway.holders(eip)) != [heir.name]:
            raise DemoError(f"the gateway's status has {eip} on {', '.join(holders) or 'no node'}, not on {heir.name}")


def print_move(cast: Cast, traffic: Traffic, *, since: float) -> None:
    """What each connection went through."""
    rows = []
    for family, exchange, flow in zip(cast.eips, traffic.exchanges, traffic.flows, strict=True):
        for title, direction in (("up", exchange.upload), ("down", exchange.download)):
            what = f"TCP over IPv{family}, {title}"
            gap = show_gap(direction.longest_gap())
            rows.append((what, exchange.seen, f"{direction.arrived} bytes", f"{direction.digest[:12]}…", gap))
        what = f"UDP over IPv{family}, every {SPACING * 1000:.0f} ms"
        outage = flow.outage(since=since)
        rows.append((what, flow.answers[-1].seen, f"{len(flow.answers)} answers", "", show_gap(outage)))
    print()
    print_table(("TRAFFIC", "THE SERVER SAW", "ARRIVED", "SHA-256, BOTH ENDS", "LONGEST GAP"), rows)


def show_gap(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def bring_back(cast: Cast, traffic: Traffic, *, lost: StageNode, heir: StageNode) -> None:
    """Its power is on again. Raises DemoError if anything goes back to it."""
    lost.revive()
    lost.agent.wait_ready()
    cast.world.await_ready(lost)
    cast.world.await_lease(lost)
    until = traffic.asking.rounds + ROUNDS
    wait_until(lambda: traffic.asking.rounds > until, what="the server asks who has the EIP")
    check_holder(cast, traffic, lost=lost, heir=heir)
    if left := lost.eips():
        raise DemoError(f"{lost.name} is back and still has {', '.join(sorted(left))}")
