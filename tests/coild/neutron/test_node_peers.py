"""The binding `bridge` is told of nodes: after a complete list, of changes of addresses, and of nothing else."""

import asyncio
from collections.abc import Callable
from ipaddress import ip_address

import structlog

from coil.crd.builtin import Node, NodeAddress, NodeCondition, NodeStatus
from coil.crd.meta import ObjectMeta
from coil.crd.names import NodeName
from coil.kube.errors import ApiError
from coil.neutron.underlay import Underlay
from coild.neutron.node_peers import NodePeers


class Nodes:
    """A cache whose list the test completes."""

    def __init__(self) -> None:
        self._complete = asyncio.Event()
        self._nodes: dict[str, Node] = {}
        self._listeners: list[Callable[[Node | None, Node | None], None]] = []
        self.last_error: ApiError | None = None

    @property
    def synced(self) -> bool:
        return self._complete.is_set()

    def complete(self) -> None:
        self._complete.set()

    async def wait_synced(self, timeout: float) -> None:
        await self._complete.wait()

    def put(self, name: str, *addresses: str, ready: str = "True") -> None:
        listed = tuple(NodeAddress(type="InternalIP", address=address) for address in addresses)
        status = NodeStatus(addresses=listed, conditions=(NodeCondition(type="Ready", status=ready),))
        self._change(name, Node(metadata=ObjectMeta(name=name), status=status))

    def delete(self, name: str) -> None:
        self._change(name, None)

    def _change(self, name: str, new: Node | None) -> None:
        old = self._nodes.pop(name, None)
        if new is not None:
            self._nodes[name] = new
        for listener in self._listeners:
            listener(old, new)

    def get(self, key: str) -> Node | None:
        return self._nodes.get(key)

    def items(self) -> list[Node]:
        return list(self._nodes.values())

    def by_index(self, index: str, value: str) -> list[Node]:
        raise KeyError(index)

    def subscribe(self, listener: Callable[[Node | None, Node | None], None], /) -> None:
        self._listeners.append(listener)

    def unsubscribe(self, listener: Callable[[Node | None, Node | None], None], /) -> None:
        self._listeners.remove(listener)


def underlay(*peers: str) -> Underlay:
    return Underlay(local=ip_address("192.0.2.1"), peers=frozenset(map(ip_address, peers)))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_is_told() -> None:
    nodes, told = Nodes(), list[Underlay]()
    peers = NodePeers(nodes, own=NodeName("own"), tell=told.append, log=structlog.get_logger())
    running = asyncio.create_task(peers.run())
    nodes.put("own", "192.0.2.1")
    nodes.put("b", "192.0.2.2")
    await settle()
    assert told == [], "before the list was complete"
    nodes.complete()
    await settle()
    assert told == [underlay("192.0.2.2")]
    nodes.put("b", "192.0.2.2", ready="False")
    await settle()
    assert told == [underlay("192.0.2.2")], "a node that is not ready is a peer all the same"
    nodes.put("c", "192.0.2.3")
    nodes.delete("b")
    await settle()
    assert told[1:] == [underlay("192.0.2.3")], "changes that come together are one"
    nodes.delete("own")
    await settle()
    assert told[2:] == [], "without its own address it tells nothing, and what was told stays"
    nodes.put("own", "192.0.2.1")
    await settle()
    assert told[2:] == [underlay("192.0.2.3")]
    running.cancel()
    await asyncio.wait([running])
    nodes.put("d", "192.0.2.4")
    await settle()
    assert len(told) == 3, "told after its end"
