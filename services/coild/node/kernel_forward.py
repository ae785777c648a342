"""The packet filters of the node, read from its kernel without blocking the event loop."""

from collections.abc import Collection
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

from coil.kernel.family import IPAddress
from coil.kernel.link import LinkName
from coil.kernel.packet_filter import ForwardHook
from coil.netlink.host import HostNetwork
from coil.netlink.worker import Worker, open_worker
from coil.nft.forward_hook import read_forward_hooks
from coil.nft.legacy_iptables import read_legacy_hooks


class KernelForward:
    """Implements `coild.node.forward_watch.ForwardReader` for the process's namespace, or the one at `netns`.

    `node_addresses` are those of the Node, as far as they are known.

    An async context manager; leaving it waits for a running call.
    """

    def __init__(
        self, network: HostNetwork, *, node_addresses: Collection[IPAddress] = (), netns: Path | None = None
    ) -> None:
        self._network = network
        self._node_addresses = node_addresses
        self._netns = netns
        self._stack = AsyncExitStack()
        self._worker: Worker

    async def __aenter__(self) -> "KernelForward":
        self._worker = await self._stack.enter_async_context(open_worker("forward-read", self._netns))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def hooks(self) -> list[ForwardHook]:
        """See `ForwardReader`."""
        return await self._worker.run(lambda: [*read_forward_hooks(), *read_legacy_hooks()])

    async def uplink(self) -> LinkName:
        """See `ForwardReader`."""
        return (await self._network.uplink(self._node_addresses)).name
