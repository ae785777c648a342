"""The demo's VPC, on the stage of the tests: fresh nodes get interfaces, pods talk by their addresses, all of it goes.

Every claim is checked against what others say: EC2, the sockets of those who are asked, and the flow records of the
VPC's router. The first that does not hold raises DemoError, or AssertionError where something was waited for in vain.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address
from itertools import permutations

from integration.aws.ec2_state import read_state
from integration.aws.node import EniNode, EniPod
from integration.aws.talk import ask
from integration.aws.vpc import Host
from integration.aws.vpc_plan import INTERNET, OUTSIDE
from integration.aws.world import PODS_OF_INTERFACE, EniWorld
from integration.demo.address_record import AddressRecord, find_contradictions, read_page
from integration.demo.appearance import Appearance, find_mistakes
from integration.demo.call_count import changes, count_rows, find_excess
from integration.demo.captured_packet import CapturedPacket, find_wrong_ways
from integration.demo.interface_picture import LEGEND, PicturedInterface, render_picture
from integration.demo.narration import DemoError, print_table, step
from integration.egress.capture import UDP, Capture, Packet
from integration.patience import wait_until

PODS = PODS_OF_INTERFACE + 1
"""Of each node: one more than an interface has addresses for."""
INTERFACES = 3
"""Which a node has when that many pods run: two that serve pods, and one whose addresses are warm."""
COOLING = "10m"
"""Longer than the part takes."""
PRIMARY_LINK = "eth0"
_OUTSIDE = OUTSIDE[INTERNET]


@dataclass(frozen=True, slots=True)
class Trip:
    """A pod's question to a host, and by which links of the node it went."""

    appearance: Appearance
    host: str
    links: tuple[str, ...]
    expected_link: str

    @property
    def row(self) -> tuple[str, str, str, str]:
        return self.appearance.pod, self.appearance.node, self.appearance.own, self.host

    @property
    def way(self) -> str:
        """The links, in words."""
        return " and ".join(self.links) or "no link"


def show(world: EniWorld) -> None:
    """The scene proper, on instances with nothing on them."""
    check_fresh(world)
    step(
        "coild starts on both instances, and has EC2 assign addresses to the interfaces that they were launched with",
        lambda: start(world),
    )
    print_pictures(world, [])
    pods = step(
        f"{PODS} pods on each, one more than an interface has addresses for: coild attaches further interfaces",
        lambda: add_pods(world),
    )
    print_pictures(world, pods)
    step(
        "addresses: no duplicates, each on an interface of the pod's node in EC2, on as few interfaces as possible",
        lambda: check_addresses(pods),
    )
    step(
        "curl localhost:6666/ip-manager on each node names the same addresses, interfaces and pods",
        lambda: check_pages(world, pods),
    )
    asked = len(pods) * (len(pods) - 1) + 2 * len(pods)
    step(
        f"pods reach each other, and pods and the machine that is not a node: no translation ({asked} questions)",
        lambda: check_inside(world, pods),
    )
    show_trips(world, pods)
    show_capture(world, pods)
    show_calls(world, pods)
    more = step(
        "one more pod on each: its address was there already, nothing is changed in EC2",
        lambda: add_without_calls(world),
    )
    step(
        f"the pods deleted: their addresses cool down ({COOLING}), the kernels hold nothing of them",
        lambda: check_removal(world, [*pods, *more]),
    )
    step("the instances terminated: their interfaces go with them, EC2 has none left", lambda: check_termination(world))


def check_fresh(world: EniWorld) -> None:
    """Raises DemoError unless each instance has one interface, with nothing but its own address."""
    for node in world.nodes:
        if [len(each.addresses) for each in node.instance.interfaces] != [1]:
            raise DemoError(f"{node.name} is not fresh: {node.instance.interfaces}")


def start(world: EniWorld) -> None:
    """Return when both nodes have addresses for pods."""
    with ThreadPoolExecutor() as threads:
        for future in [threads.submit(node.start_coild, f"--cooling={COOLING}") for node in world.nodes]:
            future.result()
    for node in world.nodes:
        node.wait_addresses(PODS_OF_INTERFACE)


def add_pods(world: EniWorld) -> list[EniPod]:
    """Return when they run, and the nodes have what they want."""
    pods = [node.add_pod() for node in world.nodes for _ in range(PODS)]
    for node in world.nodes:
        node.wait_addresses(INTERFACES * PODS_OF_INTERFACE)
    # The last thing that is done for an interface: that it goes with its instance.
    wait_until(
        lambda: world.ec2.count("ModifyNetworkInterfaceAttribute") == world.ec2.count("CreateNetworkInterface"),
        what="EC2 has been told of every interface that it goes with its instance",
    )
    return pods


def print_pictures(world: EniWorld, pods: Sequence[EniPod]) -> None:
    """The nodes' interfaces as EC2 has them, and whose each address is."""
    names = {str(pod.address): pod.sandbox.pod.name for pod in pods}
    for node in world.nodes:
        pictured = [
            PicturedInterface(
                link=f"eth{each.device}",
                own=str(each.addresses[0]),
                pods={str(address): names.get(str(address), "") for address in each.addresses[1:]},
            )
            for each in node.instance.interfaces
        ]
        print("", textwrap.indent(render_picture(node.name, pictured), "    "), sep="\n")
    print("", textwrap.indent(LEGEND, "    "), "", sep="\n", flush=True)


def check_addresses(pods: Sequence[EniPod]) -> None:
    """Raises DemoError if an address was given twice, or belongs to nobody, or pods are on too many interfaces."""
    if len({pod.address for pod in pods}) < len(pods):
        raise DemoError("an address was given twice")
    for pod in pods:
        if pod.address not in [address for each in pod.node.instance.interfaces for address in each.addresses[1:]]:
            raise DemoError(f"{pod.address} is no secondary address of an interface of {pod.node.name}")
    for node in {pod.node for pod in pods}:
        used = {pod.interface.id for pod in pods if pod.node is node}
        if len(used) != 2:
            raise DemoError(f"{PODS} pods of {node.name} are on {len(used)} interfaces")


def check_pages(world: EniWorld, pods: Sequence[EniPod]) -> None:
    """Raises DemoError if a node says something else than EC2 and the pods do."""
    for node in world.nodes:
        compare(
            node,
            [
                AddressRecord(str(pod.address), pod.interface.id, "allocated", pod.sandbox.pod.name)
                for pod in pods
                if pod.node is node
            ],
        )


def compare(node: EniNode, expected: Sequence[AddressRecord]) -> None:
    if contradictions := [*find_contradictions(node.name, read_page(node.page()), expected)]:
        raise DemoError("\n".join(contradictions))


def check_inside(world: EniWorld, pods: Sequence[EniPod]) -> None:
    """Raises DemoError if somebody is seen as somebody else, or not answered."""
    endpoint = world.endpoint
    found = [look(client, server.host, server.address) for client, server in permutations(pods, 2)]
    for pod in pods:
        found.append(look(pod, endpoint.host, endpoint.primary))
        seen, own = ask(endpoint.host, pod.host, pod.address), str(endpoint.primary)
        found.append(Appearance(pod="the machine", node=endpoint.name, own=own, seen=seen, expected=own))
    if mistakes := find_mistakes(found, names_of(world)):
        raise DemoError("\n".join(mistakes))


def look(pod: EniPod, server: Host, address: object, *, expected: object = None) -> Appearance:
    """One question of a pod, which is to be seen by its own address unless `expected` says otherwise.

    Raises DemoError when there is no answer.
    """
    name = pod.sandbox.pod.name
    try:
        seen = ask(pod.host, server, str(address))
    except TimeoutError as error:
        raise DemoError(f"{name} ({pod.address}, on {pod.node.name}) had no answer from {address}") from error
    own = str(pod.address)
    return Appearance(pod=name, node=pod.node.name, own=own, seen=seen, expected=str(expected or own))


def show_trips(world: EniWorld, pods: Sequence[EniPod]) -> None:
    """A pod of each interface asks in the VPC and outside. Raises DemoError at whoever is seen as somebody else, and
    where a packet takes another way.
    """
    trips = step(
        "the internet sees pods by their node's primary address; the VPC's flow log has the interface of each packet",
        lambda: [trip for pod in one_of_each_interface(pods) for trip in make_trips(world, pod)],
    )
    names = names_of(world)
    print()
    print_table(
        ("WHO ASKED", "ON NODE", "WITH ADDRESS", "WHOM", "WHO SAW", "WHICH IS", "BY LINK"),
        [(*trip.row, trip.appearance.seen, trip.appearance.who(names), trip.way) for trip in trips],
    )
    mistakes = find_mistakes([trip.appearance for trip in trips], names)
    mistakes += [
        f"{trip.appearance.pod} asked {trip.host} by {trip.way}, not by {trip.expected_link}"
        for trip in trips
        if trip.links != (trip.expected_link,)
    ]
    mistakes += [f"sent with an address that is not the interface's: {flow}" for flow in world.spoofed()]
    if mistakes:
        raise DemoError("\n".join(mistakes))


def one_of_each_interface(pods: Sequence[EniPod]) -> list[EniPod]:
    return list({pod.interface.id: pod for pod in pods}.values())


def make_trips(world: EniWorld, pod: EniPod) -> Iterator[Trip]:
    """To the machine in the VPC, and to the internet."""
    primary = pod.node.instance.primary
    for host, server, address, source, link in (
        ("in the VPC", world.endpoint.host, world.endpoint.primary, pod.address, pod.link),
        ("on the internet", world.vpc.internet, _OUTSIDE, primary, PRIMARY_LINK),
    ):
        appearance = look(pod, server, address, expected=source)
        links = links_of(world, pod.node, source=appearance.seen, destination=address)
        yield Trip(appearance, f"{address} {host}", links, link)


def show_capture(world: EniWorld, pods: Sequence[EniPod]) -> None:
    """What of a pod's questions is on the links of its node. Raises DemoError if a packet is where it should not be."""
    pod = next(pod for pod in pods if pod.link != PRIMARY_LINK)
    captured, expected = step(
        f"a capture on the links of {pod.node.name} while {pod.sandbox.pod.name}, whose address is of {pod.link}, asks "
        "both",
        lambda: capture_questions(world, pod),
    )
    print()
    print_table(("LINK", "FROM", "TO", "WHAT IT IS"), [each.row for each in captured])
    if wrong := find_wrong_ways(captured, expected):
        raise DemoError("\n".join(wrong))


def capture_questions(world: EniWorld, pod: EniPod) -> tuple[list[CapturedPacket], list[CapturedPacket]]:
    """All packets between the pod and each of two hosts on the links of its node, and those that there should be."""
    own, inside, primary = map(str, (pod.address, world.endpoint.primary, pod.node.instance.primary))
    names = {inside: "in the VPC", str(_OUTSIDE): "on the internet"}
    expected = [
        CapturedPacket(link=link, source=source, destination=destination, about="")
        for link, source, host in ((pod.link, own, inside), (PRIMARY_LINK, primary, str(_OUTSIDE)))
        for source, destination in ((source, host), (host, source))
    ]
    with ExitStack() as stack:
        links = [f"eth{each.device}" for each in pod.node.instance.interfaces]
        captures = {link: stack.enter_context(Capture(pod.node.namespaces.net, link)) for link in links}
        look(pod, world.endpoint.host, inside)
        look(pod, world.vpc.internet, _OUTSIDE, expected=primary)
        for each in expected:
            captures[each.link].wait_for(partial(is_from_to, each.source, each.destination), what=each.way)
        found = [
            (link, packet)
            for link, capture in captures.items()
            for packet in capture.packets()
            if packet.protocol == UDP and {packet.source, packet.destination} & {*names}
        ]
    return [describe(link, packet, names) for link, packet in found], expected


def is_from_to(source: str, destination: str, packet: Packet) -> bool:
    return (packet.source, packet.destination) == (source, destination)


def describe(link: str, packet: Packet, names: Mapping[str, str]) -> CapturedPacket:
    """`names` are the hosts that are asked, by address."""
    what = f"the question to the host {names[packet.destination]}" if packet.destination in names else "the answer"
    return CapturedPacket(
        link=link,
        source=packet.source,
        destination=packet.destination,
        about=what,
        source_port=packet.source_port,
        port=packet.port,
    )


def links_of(world: EniWorld, node: EniNode, *, source: str, destination: IPv4Address) -> tuple[str, ...]:
    """By which links of the node packets went from one address to the other, as the VPC has recorded it."""
    names = {each.id: f"eth{each.device}" for each in node.instance.interfaces}
    found = {
        names[flow.interface]
        for flow in world.vpc.flows()
        if flow.interface in names and (str(flow.source), flow.destination) == (source, destination)
    }
    return tuple(sorted(found))


def names_of(world: EniWorld) -> dict[str, str]:
    """Who has an address that others may see."""
    return {str(node.instance.primary): f"node {node.name}" for node in world.nodes}


def show_calls(world: EniWorld, pods: Sequence[EniPod]) -> None:
    """What it took. Raises DemoError if EC2 was asked more often than its interfaces need."""
    actions = [call.action for call in world.ec2.calls]
    interfaces = [each for node in world.nodes for each in node.instance.interfaces]
    addresses = sum(len(each.addresses) - 1 for each in interfaces)
    launched = len(world.nodes)
    print_table(("CALLS TO EC2", "TIMES"), count_rows(actions))
    if excess := find_excess(actions, launched=launched, added=len(interfaces) - launched):
        raise DemoError("\n".join(excess))
    print(
        f"    {len(actions)} calls for {addresses} addresses, {addresses - len(pods)} of which wait for the next pods: "
        "one for an interface that was there,\n    three for each further one, none for a pod. The others only read.\n",
        flush=True,
    )


def add_without_calls(world: EniWorld) -> list[EniPod]:
    """Raises DemoError if it took a call that changes something."""
    before = len(world.ec2.calls)
    pods = [node.add_pod() for node in world.nodes]
    if made := changes(call.action for call in world.ec2.calls[before:]):
        raise DemoError(f"an address was warm, and EC2 was asked all the same: {', '.join(made)}")
    return pods


def check_removal(world: EniWorld, pods: Sequence[EniPod]) -> None:
    """Raises DemoError with what stays, or if an address is free at once."""
    for node in world.nodes:
        own = [pod for pod in pods if pod.node is node]
        addresses = {str(pod.address) for pod in own}
        cooling = [AddressRecord(str(pod.address), pod.interface.id, "cooling", "") for pod in own]
        if not (before := [*find_traces(node, addresses)]):
            raise DemoError(f"{node.name} has no route to its pods")
        for pod in own:
            pod.delete()
        compare(node, cooling)
        if left := [*node.kernel.pod_links().values(), *find_traces(node, addresses)]:
            raise DemoError(f"of {len(before)} rules and routes and {len(own)} links, {node.name} still has {left}")


def find_traces(node: EniNode, addresses: set[str]) -> Iterator[str]:
    """Rules and routes of the node that name one of the addresses."""
    for what in (("rule", "show"), ("route", "show", "table", "all")):
        for line in node.kernel.run("ip", *what).splitlines():
            if addresses & set(line.split()):
                yield line.strip()


def check_termination(world: EniWorld) -> None:
    """Raises DemoError with the interfaces that EC2 still has, but for those of the machine that is no node."""
    for node in world.nodes:
        node.coild.process.stop()
        node.instance.stop()
        world.ec2.terminate(node.instance.id)
    if left := {*read_state(world.ec2).interfaces} - {each.id for each in world.endpoint.interfaces}:
        raise DemoError(f"EC2 still has {', '.join(sorted(left))}")
