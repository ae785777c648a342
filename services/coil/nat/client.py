"""`ClientNetwork`: the client's end of the tunnels, in the namespaces of any number of pods.

Place in the flow: coild tells what a pod is to have as a `ClientSpec`; a worker's thread enters the pod's namespace,
reads, plans (`coil.egress.client_plan`), and applies what differs (`client_sync`).
"""

from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final

from coil.egress.gateway import ClientSpec
from coil.nat.client_sync import ClientChanges, sync_client
from coil.netlink.host import NetnsPath
from coil.netlink.namespace import Namespace
from coil.netlink.worker import NamespaceExecutor, Worker

_THREADS: Final = 4
"""The kernel changes links one at a time, but what it waits for when it deletes them, it waits for in parallel."""


class ClientNetwork:
    """The client's end of the tunnels. An async context manager; leaving it waits for running jobs and leaves the
    kernel's state as it is.
    """

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._home: Namespace
        self._turns: NamespaceExecutor

    async def __aenter__(self) -> "ClientNetwork":
        async with AsyncExitStack() as stack:
            self._home = stack.enter_context(Namespace.current())
            worker = Worker("egress-client", self._home, threads=_THREADS)
            stack.push_async_callback(worker.aclose)
            self._turns = NamespaceExecutor(worker)
            stack.push_async_callback(self._turns.aclose)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def sync(self, spec: ClientSpec, netns: NetnsPath | Namespace) -> ClientChanges:
        """Make the namespace what `spec` says; an empty one leaves nothing of ours in it.

        Idempotent: what is right already is not touched, and what changes does so without a gap for other flows. Calls
        for one namespace take turns, calls for several do not wait for each other. An open `Namespace` stays the
        caller's, who may close it at once, even if the call is cancelled. A call that is cancelled takes effect
        nevertheless.

        Raises NamespaceError, BusyError (nothing was begun), NetlinkError where the kernel refused, where there is no
        uplink, or where the namespace is a router's; NftError. What could be done by then was done, and stays; the next
        call goes on.
        """
        namespace = Namespace(netns if isinstance(netns, Path) else Path(f"/proc/self/fd/{netns.fileno()}"))

        def job() -> ClientChanges:
            with namespace.entered(self._home):
                return sync_client(spec)

        return await self._turns.run(namespace, job)
