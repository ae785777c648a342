"""Everything deleted: neither the API server nor any kernel has a trace of what the pods had."""

from contextlib import ExitStack

import pytest

from integration.nodes.coil_cluster import CoilCluster, Families
from integration.patience import wait_until_clean

pytestmark = pytest.mark.cluster


def test_nothing_is_left_of_pods_that_are_deleted(coil: CoilCluster) -> None:
    with ExitStack() as stack:
        rooms = [stack.enter_context(coil.room(families, bits=1)) for families in Families]
        for room in rooms:
            room.create(*(room.pod(f"{node.name}-{number}", node) for node in coil.nodes for number in range(3)))
        for room in rooms:
            room.wait_ready("--all")
        addresses = sum(len(families.value) for families in Families)
        for node in coil.nodes:
            kernel = coil.kernel(node)
            assert len(kernel.pod_links()) == 3 * len(rooms)
            assert len(kernel.destinations("116")) == 3 * addresses
            assert len(kernel.destinations("119")) == 2 * addresses
    wait_until_clean(lambda: leftovers(coil), after="everything was deleted")


def leftovers(coil: CoilCluster) -> list[str]:
    """A line for each thing of Coil's that still exists, but for the programs themselves."""
    objects = coil.plane.kubectl("get", "addresspools,addressblocks,blockrequests", "--output=name").split()
    found = [f"the API server has {name}" for name in objects]
    for node in coil.nodes:
        kernel = coil.kernel(node)
        found += [f"{node.name} has the link {link} of {alias}" for alias, link in kernel.pod_links().items()]
        for table in ("116", "119"):
            found += [f"{node.name} has {route} in table {table}" for route in kernel.destinations(table)]
    return found
