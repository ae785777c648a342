"""What coild waits for at its start."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from coil.crd.builtin import NODES, Node
from coil.crd.meta import ObjectMeta
from coil.crd.names import NodeName
from coil.crd.resource import Resource
from coil.kube.client import KubeClient
from coil.kube.errors import ApiError, ForbiddenError, InvalidError, NotFoundError, UnavailableError
from coild.eni.eni_ipam import EniIpam
from coild.main import Interfaces, Start, read_node
from tests.coild.scene import LOG

NODE = Node(metadata=ObjectMeta(name="node-1"))


class Reluctant:
    """An API server that fails with each of `errors` before it answers."""

    def __init__(self, *errors: ApiError) -> None:
        self.errors = list(errors)

    async def get(self, resource: Resource[Node], name: str) -> Node:
        assert (resource, name) == (NODES, "node-1")
        if self.errors:
            raise self.errors.pop(0)
        return NODE


async def read(server: Reluctant) -> Node:
    return await read_node(cast(KubeClient, server), NodeName("node-1"), rng=Random(1), log=LOG)


@pytest.mark.parametrize("refusal", [UnavailableError, NotFoundError, ForbiddenError])
async def test_an_api_server_that_is_only_starting_is_waited_for(refusal: Callable[[str], ApiError]) -> None:
    """One that has just started answers 403 to everybody until it has read the roles."""
    server = Reluctant(*[refusal("not yet")] * 5)
    assert await read(server) == NODE
    assert server.errors == []


async def test_any_other_refusal_ends_the_start() -> None:
    with pytest.raises(InvalidError):
        await read(Reluctant(InvalidError("no")))


async def test_ec2_and_what_egress_needs_are_waited_for_at_once() -> None:
    """Each of the two is over when the other has begun: one after the other would never end."""
    both = asyncio.Barrier(2)

    async def wait(*, timeout: float = 0.0) -> None:
        await both.wait()

    start = SimpleNamespace(egress=SimpleNamespace(wait_listed=wait))
    part = Interfaces(cast(Start, start), cast(EniIpam, SimpleNamespace(source=None, start=wait)))
    async with asyncio.timeout(60):
        await part.list_objects()


def test_a_node_with_pools_loads_nothing_of_aws_and_openstack() -> None:
    code = "import sys, coild.main; print(*sorted(sys.modules), sep='\\n')"
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    loaded = modules.stdout.split()
    assert "coild.addresses.pool_ipam" in loaded
    assert [
        name
        for name in loaded
        if re.match(r"(aiobotocore|botocore|coil\.aws|coil\.eni|coild\.eni|coil\.neutron|coild\.neutron)\b", name)
    ] == []
