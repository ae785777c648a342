"""What coild waits for at its start."""

from collections.abc import Callable
from random import Random
from typing import cast

import pytest

from coil.crd.builtin import NODES, Node
from coil.crd.meta import ObjectMeta
from coil.crd.names import NodeName
from coil.crd.resource import Resource
from coil.kube.client import KubeClient
from coil.kube.errors import ApiError, ForbiddenError, InvalidError, NotFoundError, UnavailableError
from coild.main import read_node
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
