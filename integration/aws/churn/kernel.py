"""What the nodes' kernels have, compared with the pods: every deletion, looks at all nodes, and what is left at rest.

iproute2 is the oracle. A pod's host end has a name of its own, so nobody takes the route of one pod for another's.
"""

from collections.abc import Iterator, Sequence
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from itertools import pairwise
from typing import Final

from integration.aws.churn.register import PodRegister, WiredPod
from integration.aws.node import EniNode
from integration.change_monitor import ChangeMonitor
from integration.kernel_state import POD_TABLE, KernelState
from integration.side_thread import SideThread

SOURCE_RULE: Final = 1536
FIRST_TABLE: Final = 10_000
_PAUSE: Final = 2.0
"""Seconds between two looks."""


class DeletionWatch(ChangeMonitor):
    """A context manager: no route and no rule of a pod that is up is deleted, not even for an instant."""

    def __init__(self, node: EniNode, register: PodRegister) -> None:
        self._node = node.name
        self._register = register
        super().__init__(str(node.namespaces.net), "route", "rule")

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            for line in stdout:
                self._lines.append(line)
                self._judge(line.split())

    def _judge(self, words: list[str]) -> None:
        """`Deleted [unicast] 10.1.0.7 dev veth… table 116 …`, or `Deleted 1536: from 10.1.0.7 lookup 10001 …`."""
        if words[:1] != ["Deleted"]:
            return
        # After the words that may be in front, words and their values alternate.
        options = dict(pairwise(words))
        is_rule = words[1] == f"{SOURCE_RULE}:"
        if not is_rule and options.get("table") != POD_TABLE:
            return
        destination = words[1] if words[1][:1].isdigit() else words[2]
        address = _address(options.get("from", "") if is_rule else destination)
        pod = None if address is None else self._register.holder(address, node=self._node)
        if pod is not None and (is_rule or options.get("dev") == pod.link):
            self._register.accuse(f"{pod} is up, and has lost: {' '.join(words)}")


class KernelWatch(SideThread):
    """Looks at all nodes, again and again, while the context is open."""

    def __init__(self, nodes: Sequence[EniNode], register: PodRegister) -> None:
        super().__init__("kernel watch", failed=register.failed.set)
        self.looks = 0
        self._nodes = nodes
        self._register = register

    def work(self) -> None:
        while not self.stopped.wait(_PAUSE):
            self._look()
            self.looks += 1

    def _look(self) -> None:
        before = self._register.pods()
        routes = {node.name: _pod_routes(node.kernel) for node in self._nodes}
        tables = {node.name: _source_tables(node.kernel) for node in self._nodes}
        for pod in before & self._register.pods():
            # Up all the time in between.
            if (link := routes[pod.node].get(pod.address)) != pod.link:
                self._register.accuse(f"{pod} is up with {pod.address}, which is routed to {link}")
            if (fault := self._misled(pod, tables[pod.node].get(pod.address))) is not None:
                self._register.accuse(fault)
        for first in self._nodes:
            for second in self._nodes[self._nodes.index(first) + 1 :]:
                for address in routes[first.name].keys() & routes[second.name].keys():
                    # The first may have lost it before the second got it; but a link that is still there was so then.
                    link = routes[first.name][address]
                    if _pod_routes(first.kernel).get(address) == link:
                        self._register.accuse(f"{first.name} and {second.name} route {address} to pods of theirs")

    def _misled(self, pod: WiredPod, table: int | None) -> str | None:
        """Why what the pod sends does not leave by the interface that has its address; None if it does."""
        node = next(each for each in self._nodes if each.name == pod.node)
        interface = next((each for each in node.instance.interfaces if pod.address in each.addresses), None)
        if interface is None:
            return None  # which is for the watch of the account to say, if the pod is up
        wanted = FIRST_TABLE + interface.device if interface.device else None
        if table == wanted or pod not in self._register.pods():
            return None
        return f"{pod} is up with {pod.address} of interface {interface.device}, and sends by table {table or 'main'}"


def find_kernel_leftovers(node: EniNode) -> Iterator[str]:
    """What is left of pods on a node that has none."""
    kernel = node.kernel
    links = kernel.ip("link", "show")
    own = {"lo", *(f"eth{each.device}" for each in node.instance.interfaces)}
    yield from (f"{node.name} has the link {each['ifname']}" for each in links if each["ifname"] not in own)
    yield from (f"{node.name} routes {address} to {link}" for address, link in _pod_routes(kernel).items())
    primaries = {each.addresses[0] for each in node.instance.interfaces}
    rules = _source_tables(kernel).keys() - primaries
    yield from (f"{node.name} has a rule for {address}" for address in sorted(rules))


def _pod_routes(kernel: KernelState) -> dict[IPv4Address, str]:
    """The addresses that are routed to pods, and the link that each leads to."""
    found = kernel.destinations(POD_TABLE).items()
    return {address: link for destination, link in found if (address := _address(destination)) is not None}


def _source_tables(kernel: KernelState) -> dict[IPv4Address, int]:
    """The addresses that have a rule of their own, and its table."""
    rules = kernel.ip("-4", "rule", "show", "priority", str(SOURCE_RULE))
    return {address: int(rule["table"]) for rule in rules if (address := _address(rule.get("src", ""))) is not None}


def _address(text: str) -> IPv4Address | None:
    try:
        return IPv4Network(text)[0]
    except (AddressValueError, ValueError):
        return None
