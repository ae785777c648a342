"""Egress NAT by the library alone: `python -m integration.nat_example`, as root.

    client 10.64.0.2 ═══ tunnel ═══ router 10.64.0.3 ─── outside 203.0.113.9
           fd64::2                         fd64::3               2001:db8:1::9

Builds the three in network namespaces around a node, has the client ask the outside host something in both families,
and prints what captures saw on the client's wire and at the outside host. Needs a kernel with Foo-over-UDP; where this
one has none, `python -m integration.vm -- python -m integration.nat_example` runs it in a virtual machine.
"""

import asyncio
import os
import socket
import sys

from coil.egress.gateway import ClientSpec, Gateway, RouterSpec, SourcePort
from coil.kernel.family import Family
from coil.nat import NAT_ERRORS
from coil.nat.client import ClientNetwork
from coil.nat.router import RouterNetwork
from integration.nat_stage import OUTSIDE, Host, NatStage
from integration.packet_capture import Capture
from integration.vm.feature import missing_features

_SECONDS = 60.0


async def connect(stage: NatStage) -> None:
    """All that a user of the library does: a router, a client of it, and each told of the other."""
    router = tuple(stage.router.addresses.values())
    client = tuple(stage.client.addresses.values())
    gateway = Gateway(name="example/nat", addresses=router, destinations=tuple(OUTSIDE.values()))
    async with RouterNetwork(stage.router.netns.path) as router_network, ClientNetwork() as client_network:
        await router_network.set_up(RouterSpec(addresses=router))
        await router_network.set_destinations(tuple(OUTSIDE.values()))
        await router_network.add_peers(client, SourcePort.FIXED)
        changes = await client_network.sync(ClientSpec(addresses=client, gateways=(gateway,)), stage.client.netns.path)
    print("In the client's namespace:")
    for change in (*changes.made, *map(str, changes.problems)):
        print(f"  {change}")


def ask(client: Host, outside: Host, family: Family) -> str:
    """Send a UDP datagram from the client to the outside host and back; returns whom the outside host saw."""
    kind = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
    with (
        client.netns.call(lambda: socket.socket(kind, socket.SOCK_DGRAM)) as asking,
        outside.netns.call(lambda: socket.socket(kind, socket.SOCK_DGRAM)) as answering,
    ):
        for end in (asking, answering):
            end.settimeout(_SECONDS)
        answering.bind((str(outside.addresses[family]), 7))
        asking.sendto(b"who am I?", answering.getsockname())
        question, peer = answering.recvfrom(64)
        answering.sendto(question, peer)
        asking.recv(64)
        return str(peer[0])


def main() -> int:
    """0 where every packet came and went as it should; 1 where it did not, or where the kernel lacks what it takes."""
    if os.geteuid() != 0:
        print("network namespaces take root", file=sys.stderr)
        return 1
    if missing := missing_features():
        print("this kernel has no egress NAT. It lacks:", *missing, sep="\n  ", file=sys.stderr)
        print("python -m integration.vm -- python -m integration.nat_example brings one that does", file=sys.stderr)
        return 1
    with NatStage() as stage:
        try:
            asyncio.run(connect(stage))
        except NAT_ERRORS as error:
            print(error, file=sys.stderr)
            return 1
        with Capture(stage.client.netns) as wire, Capture(stage.outside.netns) as uplink:
            seen = {family: ask(stage.client, stage.outside, family) for family in Family}
    for title, capture in (("On the client's wire:", wire), ("At the outside host:", uplink)):
        print(title, *capture.packets(), sep="\n  ")
    print("The outside host saw:", *seen.values())
    return 0 if seen == {family: str(stage.router.addresses[family]) for family in Family} else 1


if __name__ == "__main__":
    sys.exit(main())
