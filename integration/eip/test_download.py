"""A pod that only listens on a connection of its own hears on when its address has moved to another node."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import pytest

from integration.eip.flow import Download
from integration.eip.pod import Pod
from integration.eip.world import Gateway, Policy, World
from integration.patience import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver]

LABELS = {"app": "download"}


@dataclass(frozen=True, slots=True)
class Listening:
    """A policy, and pods that download, in both families each."""

    world: World
    gateway: Gateway
    policy: Policy
    downloads: dict[str, Download]
    """By node of the pod and IP version."""

    @property
    def eips(self) -> set[str]:
        """The policy's addresses."""
        return {self.policy.eip(version) for version in (4, 6)}

    def move(self, how: Callable[[], object], *nodes: str) -> str:
        """Have something happen that makes another node the holder; what the pods on `nodes` hear then goes on. Returns
        how long they heard nothing.
        """
        former = self.policy.wait_placed()
        begin = time.monotonic()
        how()
        self.policy.wait_placed(elsewhere=former)
        concerned = {name: each for name, each in self.downloads.items() if name.startswith(nodes)}
        for download in concerned.values():
            download.await_more()
        return ", ".join(f"{name}: {each.pause(since=begin):.2f} s" for name, each in concerned.items())


@contextmanager
def listening(world: World, gateways: tuple[str, ...], pods: tuple[str, ...]) -> Iterator[Listening]:
    with ExitStack() as stack:
        gateway = stack.enter_context(world.gateway(*gateways, number=1))
        made: dict[str, Pod] = {node: stack.enter_context(world.pod(node, **LABELS)) for node in pods}
        policy = stack.enter_context(world.policy(gateway, labels=LABELS))
        downloads = {}
        for node, pod in made.items():
            for version, address in world.server.addresses.items():
                world.await_seen(pod, policy.eip(version))
                downloads[f"{node} IPv{version}"] = stack.enter_context(Download(pod, world.server, address))
        for download in downloads.values():
            download.await_more()
        yield Listening(world, gateway, policy, downloads)
        assert {download.seen for download in downloads.values()} == {policy.eip(4), policy.eip(6)}


@pytest.mark.slow
def test_a_download_outlives_planned_moves_to_its_own_node_and_away(world: World) -> None:
    with listening(world, ("n1",), ("n2", "n3")) as traffic:
        for target in ("n2", "n1", "n2"):
            pauses = traffic.move(partial(traffic.gateway.select, target), "n2", "n3")
            print(f"\npause of a download, planned move to {target}: {pauses}")


def test_a_download_outlives_a_server_that_is_late_to_learn_where_the_address_is(world: World) -> None:
    """What it sends meanwhile to the former gateway is nothing for that node's conntrack: the pod's own packets would
    leave from another port when the address comes back.
    """
    with listening(world, ("n2",), ("n2", "n3")) as traffic:
        with world.server.neighbors(dict.fromkeys(traffic.eips, world.node("n2").mac)):
            traffic.gateway.select("n1")
            wait_until(lambda: not traffic.eips & world.node("n2").eips(), what="n2 has given the address away")
            sent = world.server.retransmitted()
            wait_until(lambda: world.server.retransmitted() > sent + len(traffic.downloads), what="the server insists")
        for download in traffic.downloads.values():
            download.await_more()
        pauses = traffic.move(partial(traffic.gateway.select, "n2"), "n2", "n3")
        print(f"\npause of a download, back to where the server thought it was: {pauses}")


def test_a_download_outlives_an_agent_that_is_told_to_end(world: World) -> None:
    with listening(world, ("n1", "n2"), ("n3",)) as traffic:
        first = world.node(traffic.policy.wait_placed())
        pauses = traffic.move(first.stop_agent, "n3")
        print(f"\npause of a download, handed over: {pauses}")
        world.restore()
        wait_until(lambda: world.held(world.node(traffic.policy.wait_placed())), what="the holder holds its lease")
