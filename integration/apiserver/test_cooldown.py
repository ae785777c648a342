"""Addresses that rest, spares, and what survives a kill -9, with the real kernel, plugin, controller and API server."""

import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ipaddress import ip_address

import pytest

from integration.apiserver.bare_node import BareNode
from integration.apiserver.runtime import TRY_AGAIN_LATER, CniError, Runtime, addresses_of
from integration.apiserver.sandbox import PodName, Sandbox
from integration.cluster.control_plane import ControlPlane
from integration.patience import wait_until
from integration.service import Service

pytestmark = pytest.mark.apiserver

LONG = "--cooling=1h"
"""No test takes that long."""


@pytest.fixture(scope="module")
def node(plane: ControlPlane) -> Iterator[BareNode]:
    with BareNode.up(plane) as node:
        node.make_pool("narrow", {"ipv4": "10.94.0.0/30"}, bits=2)
        node.make_pool("wide", {"ipv4": "10.95.0.0/24"}, bits=3)
        for name in ("narrow", "wide"):
            node.make_namespace(name, pool=name)
        controller = node.start_controller()
        yield node
        controller.process.stop()


@pytest.fixture
def runtime(node: BareNode) -> Iterator[Runtime]:
    """Afterwards every block has gone: a coild that knows of no rest gives back what no pod has."""
    yield node.install_plugin()
    node.destroy_sandboxes()
    node.socket.with_suffix(".journal").unlink(missing_ok=True)
    coild = node.start_coild("--cooling=100ms", "--addressblock-gc-interval=500ms")
    wait_until(lambda: not node.objects("addressblocks"), what="no block is left")
    coild.process.stop()


@pytest.fixture
def start(node: BareNode, runtime: Runtime) -> Iterator[Callable[..., Service]]:
    """Starts coild with more flags; it ends with the test."""
    with ExitStack() as undo:

        def start(*flags: str) -> Service:
            coild = node.start_coild(*flags)

            def stop() -> None:
                coild.process.stop()  # the one of its last life

            undo.callback(stop)
            return coild

        yield start


@pytest.fixture
def pod(node: BareNode) -> Callable[[str], Sandbox]:
    def make(namespace: str) -> Sandbox:
        return node.make_sandbox(PodName(namespace, f"pod-{secrets.token_hex(3)}"), container_id=secrets.token_hex(32))

    return make


def restart(coild: Service) -> None:
    coild.kill()
    coild.start()
    coild.wait_ready()


def test_after_a_kill_the_search_goes_on_and_what_rests_goes_on_resting(
    node: BareNode, runtime: Runtime, start: Callable[..., Service], pod: Callable[[str], Sandbox]
) -> None:
    coild = start(LONG)
    pods = [pod("wide") for _ in range(5)]
    given = [addresses_of(runtime.add(sandbox))[0] for sandbox in pods]
    first = int(ip_address(given[0]))
    assert [int(ip_address(address)) - first for address in given] == [0, 1, 2, 3, 4]
    for sandbox in pods[1:]:
        runtime.delete(sandbox)
    journal = node.socket.with_suffix(".journal")
    assert stat.S_IMODE(journal.stat().st_mode) == 0o600
    restart(coild)
    later = [int(ip_address(addresses_of(runtime.add(pod("wide")))[0])) - first for _ in range(4)]
    assert later == [5, 6, 7, 8], "the rest of the block, then another: nothing that rests"


def test_a_pod_that_vanished_while_coild_was_dead_leaves_an_address_that_rests(
    node: BareNode, runtime: Runtime, start: Callable[..., Service], pod: Callable[[str], Sandbox]
) -> None:
    coild = start(LONG)
    holder, doomed = pod("narrow"), pod("narrow")
    runtime.add(holder)
    (lost,) = addresses_of(runtime.add(doomed))
    coild.kill()
    doomed.destroy()
    wait_until(lambda: len(node.kernel.pod_links()) == 1, what="the veth went with its namespace")
    coild.start()
    coild.wait_ready()
    others = [addresses_of(runtime.add(pod("narrow")))[0] for _ in range(2)]
    assert lost not in others
    # The pool has no other block and no other address.
    assert addresses_of(runtime.add(pod("narrow"))) == [lost]


@pytest.mark.parametrize("damage", ["cut", "foreign", "gone"])
def test_a_journal_that_cannot_be_read_changes_nothing_for_pods(
    node: BareNode, runtime: Runtime, start: Callable[..., Service], pod: Callable[[str], Sandbox], damage: str
) -> None:
    coild = start(LONG)
    pods = [pod("wide") for _ in range(3)]
    results = [runtime.add(sandbox) for sandbox in pods]
    coild.kill()
    journal = node.socket.with_suffix(".journal")
    match damage:
        case "cut":
            journal.write_bytes(journal.read_bytes()[:-30])
        case "foreign":
            journal.write_text("127.0.0.1 localhost\n")
        case "gone":
            journal.unlink()
    coild.start()
    coild.wait_ready()
    for sandbox, result in zip(pods, results, strict=True):
        runtime.check(sandbox, cached=result)
    fresh = addresses_of(runtime.add(pod("wide")))
    assert not set(fresh) & {address for result in results for address in addresses_of(result)}


def test_a_pod_that_gets_no_address_is_told_by_an_event(
    node: BareNode, runtime: Runtime, start: Callable[..., Service], pod: Callable[[str], Sandbox]
) -> None:
    """One, however often its runtime tries again; `test_event_recorder` has how it counts."""
    start(LONG)
    for _ in range(4):
        runtime.add(pod("narrow"))
    unlucky, later = pod("narrow"), pod("narrow")

    def told(sandbox: Sandbox) -> list[str]:
        items = node.plane.read("/api/v1/namespaces/narrow/events")["items"]
        wanted = (sandbox.pod.name, "NoAddress", "Warning")
        return [
            item["message"]
            for item in items
            if (item["involvedObject"]["name"], item["reason"], item["type"]) == wanted
        ]

    def refuse(sandbox: Sandbox) -> str:
        with pytest.raises(CniError) as refusal:
            runtime.add(sandbox)
        assert refusal.value.code == TRY_AGAIN_LATER
        return refusal.value.message

    message = refuse(unlucky)
    assert "pool narrow: out of blocks" in message
    wait_until(lambda: told(unlucky), what="an Event on the pod")
    assert told(unlucky) == [message]
    refuse(unlucky)
    refuse(later)
    # Events are written in the order of what they tell.
    wait_until(lambda: told(later), what="an Event on the next pod")
    assert told(unlucky) == [message]


def test_a_spare_is_kept_while_the_pool_is_in_use_and_given_back_afterwards(
    node: BareNode, runtime: Runtime, start: Callable[..., Service], pod: Callable[[str], Sandbox]
) -> None:
    start("--cooling=200ms", "--warm-addresses=10", "--addressblock-gc-interval=1s")
    assert node.objects("addressblocks") == [], "a node without pods holds nothing"
    sandbox = pod("wide")
    runtime.add(sandbox)
    wait_until(lambda: len(node.objects("addressblocks")) == 2, what="two blocks of eight, for a pod and ten spares")
    assert addresses_of(runtime.add(pod("narrow")))
    runtime.delete(sandbox)

    def pools() -> set[str]:
        return {entry["metadata"]["labels"]["coil.cybozu.com/pool"] for entry in node.objects("addressblocks")}

    wait_until(lambda: pools() == {"narrow"}, what="the blocks of the pool that nobody uses are given back")
