"""Defects that the Go implementation has had in its address management, each against the real things.

coil.md section 6 lists them; docs/testing.md says which test keeps which from coming back.
"""

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from integration.apiserver.bare_node import NAME
from integration.apiserver.conftest import CoilNode
from integration.apiserver.runtime import TRY_AGAIN_LATER, CniError, addresses_of
from integration.apiserver.sandbox import Sandbox
from integration.deployment import apply
from integration.kernel_state import EXPORT_TABLE
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

MakePod = Callable[[str], Sandbox]

CROWD = 8
BATCHES, BATCH = 8, 6
BLOCK_SIZE = 8


def blocks_of(coil: CoilNode, pool: str) -> list[dict[str, Any]]:
    blocks = coil.node.objects("addressblocks")
    return [block for block in blocks if block["metadata"]["labels"].get("coil.cybozu.com/pool") == pool]


def add_at_last(coil: CoilNode, pod: Sandbox) -> list[str]:
    """What a kubelet gets that tries again as long as it is told to."""
    given: list[str] = []

    def comes_up() -> bool:
        try:
            given[:] = addresses_of(coil.runtime.add(pod))
        except CniError as failure:
            if failure.code != TRY_AGAIN_LATER:
                raise
        return bool(given)

    wait_until(comes_up, what=f"{pod.pod} comes up")
    return given


def test_an_add_that_waits_for_the_controller_is_in_nobodys_way(coil: CoilNode, make_pod: MakePod) -> None:
    """There, one mutex was held across the wait, and every other ADD and DEL of the node stood behind it."""
    holder, waiting = make_pod("dual"), make_pod("v6")
    coil.runtime.add(holder)
    wait_until(lambda: not blocks_of(coil, "v6"), what="no block of v6 on the node")
    coil.controller.kill()
    with ThreadPoolExecutor(max_workers=1) as pool:
        answer = pool.submit(add_at_last, coil, waiting)
        wait_until(lambda: coil.node.objects("blockrequests"), what="the ADD waits for a block")
        for _ in range(3):
            other = make_pod("dual")
            result = coil.runtime.add(other)
            coil.runtime.check(other, cached=result)
            coil.runtime.delete(other, cached=result)
        assert not answer.done()
        assert blocks_of(coil, "v6") == []
        coil.controller.start()
        assert ip_address(answer.result()[0]) in ip_network("fd83::/120")


def test_addresses_are_distinct_though_the_blocks_are_read_anew_under_a_crowd(
    coil: CoilNode, make_pod: MakePod
) -> None:
    """There, a synchronization that took no lock put an address back that had just been given."""
    pods = [make_pod("dual") for _ in range(3 * CROWD)]
    late = threading.Event()

    def bring_up(number: int) -> list[str]:
        if number == CROWD:
            late.set()
        return add_at_last(coil, pods[number])

    with ThreadPoolExecutor(max_workers=CROWD) as pool:
        answers = [pool.submit(bring_up, number) for number in range(len(pods))]
        assert late.wait(60)
        # Every watch ends, and every cache lists again.
        coil.node.plane.restart_apiserver()
        coil.coild.crash()
        given = [answer.result() for answer in answers]
    assert len({address for addresses in given for address in addresses}) == 2 * len(pods)
    for pod, addresses in zip(pods, given, strict=True):
        assert pod.kernel.global_addresses() == set(addresses)


def test_pods_that_ask_again_while_the_controller_is_down_get_one_block(coil: CoilNode, make_pod: MakePod) -> None:
    """There, each try left a request behind, and each request got its block when the controller was back."""
    wait_until(lambda: not blocks_of(coil, "v4"), what="no block of v4 on the node")
    coil.controller.kill()
    pods = [make_pod("v4") for _ in range(BLOCK_SIZE)]
    with ThreadPoolExecutor(max_workers=BLOCK_SIZE) as pool:
        answers = [pool.submit(add_at_last, coil, pod) for pod in pods]
        wait_until(lambda: coil.node.objects("blockrequests"), what="a request")
        # A second life asks again, for the same pods.
        coil.coild.crash()
        coil.coild.wait_ready()
        wait_until(
            lambda: len(coil.node.objects("blockrequests")) == 1, what="one request is there, of the second life"
        )
        coil.controller.start()
        addresses = {address for answer in answers for address in answer.result()}
    assert len(addresses) == BLOCK_SIZE
    (block,) = blocks_of(coil, "v4")
    assert all(ip_address(address) in ip_network(block["ipv4"]) for address in addresses)
    wait_until(lambda: not coil.node.objects("blockrequests"), what="the request is deleted")
    assert [found["metadata"]["uid"] for found in blocks_of(coil, "v4")] == [block["metadata"]["uid"]]


def test_a_del_waits_for_nothing(coil: CoilNode, make_pod: MakePod) -> None:
    """There, a DEL slept for 30 s. Here it is done while its block cannot be given back, as nobody takes it."""
    wait_until(lambda: not blocks_of(coil, "v6"), what="no block of v6 on the node")
    last = make_pod("v6")
    result = coil.runtime.add(last)
    (block,) = blocks_of(coil, "v6")
    coil.node.plane.stop_apiserver()
    coil.runtime.delete(last, cached=result)
    assert last.kernel.link("eth0") is None
    assert f"COIL:v6:{last.container_id}:eth0" not in coil.node.kernel.pod_links()
    coil.node.plane.start_apiserver()
    wait_until(
        lambda: block["metadata"]["uid"] not in [found["metadata"]["uid"] for found in blocks_of(coil, "v6")],
        what="the block is given back",
    )


def reserved_block(name: str, number: int, labels: dict[str, str]) -> dict[str, object]:
    block = {"apiVersion": "coil.cybozu.com/v2", "kind": "AddressBlock", "index": number}
    return {**block, "metadata": {"name": name, "labels": labels}, "ipv4": f"10.89.{number}.0/24"}


def test_blocks_that_appear_while_coild_starts_are_all_taken_in(coil: CoilNode) -> None:
    """There, what came between the list and the watch was never heard of."""
    prefix = f"race-{secrets.token_hex(3)}"
    names = [f"{prefix}-{number}" for number in range(BATCHES * BATCH)]
    # Reserved ones are exported as soon as they are known, and stay without a pod.
    labels = {
        "coil.cybozu.com/node": NAME,
        "coil.cybozu.com/pool": prefix,
        "coil.cybozu.com/reserved": "true",
    }
    begun = threading.Event()

    def make() -> None:
        for first in range(0, len(names), BATCH):
            numbers = range(first, first + BATCH)
            apply(coil.node.plane, *(reserved_block(names[number], number, labels) for number in numbers))
            begun.set()

    coil.coild.kill()
    with ThreadPoolExecutor(max_workers=1) as pool:
        making = pool.submit(make)
        assert begun.wait(60)
        coil.coild.start()
        coil.coild.wait_ready()
        making.result()
    wanted = {f"10.89.{number}.0/24" for number in range(len(names))}
    try:
        wait_until(
            lambda: wanted <= coil.node.kernel.destinations(EXPORT_TABLE).keys(), what="every block is in the books"
        )
    finally:
        with suppress(Exception):
            coil.node.plane.kubectl("delete", "addressblocks", *names, "--wait=false")
    wait_until(lambda: not wanted & coil.node.kernel.destinations(EXPORT_TABLE).keys(), what="they are withdrawn again")
