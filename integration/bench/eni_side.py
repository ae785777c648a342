"""Our side with addresses of network interfaces: a node in a VPC, as the tests have it, with the plugin and coild.

The instance has its addresses before any pod comes, and EC2 has no more for it: as with a block that is larger than all
pods, an ADD waits for coild alone, and nothing is asked of EC2 while it is measured.
"""

from contextlib import ExitStack
from pathlib import Path
from subprocess import CalledProcessError
from types import TracebackType
from typing import Any, Final, Self

from integration.apiserver.plane_pool import PlanePool
from integration.apiserver.sandbox import PodName
from integration.aws.node import EniNode
from integration.aws.world import EniWorld
from integration.bench.bound_pods import bind_pods
from integration.bench.cni_side import coil_netconf
from integration.bench.coild_module import PLAIN, run_by
from integration.bench.process_state import CpuTime, cpu_time
from integration.patience import wait_until

TYPE: Final = "m5.4xlarge"
"""Eight interfaces with thirty addresses each."""
ADDRESSES_OF_INTERFACE: Final = 29
"""Those that pods can have."""
_WARM_SECONDS: Final = 120.0


class EniSide:
    """A context manager: the instance is there inside, and gone after it. coild is started by `start_coild`."""

    name = "coil, addresses of interfaces"

    def __init__(self) -> None:
        self._undo = ExitStack()
        self._world: EniWorld | None = None
        self._pods: tuple[PodName, ...] = ()

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            plane = undo.enter_context(undo.enter_context(PlanePool()).lend())
            self._world = undo.enter_context(EniWorld.up(plane, instance_type=TYPE))
            self._pods = bind_pods(plane, self._node.name)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._undo.close()
        self._world = None

    def start_coild(self, *flags: str, warm: int) -> None:
        """Start it, in place of one that runs; returns when so many addresses are free or pods', and EC2 is left alone.

        As `CoilSide` has it, but for where its addresses come from: pods without an object are refused.
        """
        node = self._node
        if hasattr(node, "coild"):
            node.coild.kill()
        command, environment = run_by(PLAIN, node.coild_command("--egress-fail-open=false", *flags))
        node.coild = node.start_daemon(command, env=environment)
        node.coild.wait_ready()
        wait_until(lambda: self._has(warm), what=f"{warm} addresses for pods", timeout=_WARM_SECONDS)

    def counts(self) -> dict[str, Any]:
        """The numbers of addresses by state, from coild's page."""
        counts: dict[str, Any] = self._node.page()["addresses"]
        return counts

    def changes_asked(self) -> int:
        """How often EC2 has been asked to change something."""
        return sum(not call.action.startswith("Describe") for call in self._entered.ec2.calls)

    def device_of(self, address: str) -> int:
        """The number of the interface that has it. Raises LookupError."""
        for interface in self._node.instance.interfaces:
            if any(address == str(each) for each in interface.addresses[1:]):
                return interface.device
        raise LookupError(f"no interface of the instance has {address}")

    @property
    def plugin(self) -> Path:
        return self._node.runtime.plugin

    @property
    def netconf(self) -> bytes:
        return coil_netconf(self._node.socket)

    @property
    def pid(self) -> int:
        """coild's."""
        return self._node.coild.process.pid

    def pod(self, number: int) -> PodName:
        return self._pods[number]

    def daemon_cpu(self) -> CpuTime:
        return cpu_time(self.pid)

    def _has(self, count: int) -> bool:
        try:
            counts = self.counts()
        except CalledProcessError:
            return False  # the page comes a moment after the socket
        return int(counts["free"]) + int(counts["allocated"]) >= count

    @property
    def _entered(self) -> EniWorld:
        if self._world is None:
            raise RuntimeError("the side is not entered")
        return self._world

    @property
    def _node(self) -> EniNode:
        return self._entered.nodes[0]
