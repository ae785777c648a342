"""An ADD that fails, at whatever step, leaves nothing behind: both namespaces are afterwards what they were before."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coil.netlink import attachment
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, LinkExistsError, NamespaceError, NetlinkError
from coil.netlink.host import HostNetwork, NetnsPath
from coil.netlink.sysctl import apply_sysctls
from integration.netns.netns import Netns
from integration.netns.plans import pod_plan

pytestmark = pytest.mark.kernel


class InjectedError(NetlinkError):
    """Not the kernel's."""


class Steps:
    """Counts the steps of an attachment that could fail, and makes one of them fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing = 0
        self.taken: list[str] = []
        monkeypatch.setattr(Connection, "apply", self._wrapped("apply", Connection.apply))
        monkeypatch.setattr(Connection, "get", self._wrapped("get", Connection.get))
        monkeypatch.setattr(attachment, "apply_sysctls", self._wrapped("sysctls", apply_sysctls))

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            self.taken.append(name)
            if len(self.taken) == self.failing:
                raise InjectedError(f"step {self.failing}")
            return function(*args, **kwargs)

        return step


async def test_a_fault_at_any_step(
    network: HostNetwork, host: Netns, pod: Netns, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = host.state(), pod.state()
    steps = Steps(monkeypatch)
    plan = pod_plan()
    while True:
        steps.taken.clear()
        steps.failing += 1
        try:
            await network.attach_pod(plan, pod.path)
        except InjectedError:
            assert (host.state(), pod.state()) == before
        else:
            break  # there are no more steps than those that have failed
    assert len(steps.taken) < steps.failing
    assert steps.taken.count("sysctls") == 2
    assert steps.taken.count("apply") == 4
    steps.failing = 0
    await network.check_pod(plan, pod.path)


async def test_the_path_does_not_exist(network: HostNetwork, host: Netns) -> None:
    before = host.state()
    path = NetnsPath(Path("/run/netns/coil-there-is-none"))
    with pytest.raises(NamespaceError, match="coil-there-is-none: No such file"):
        await network.attach_pod(pod_plan(), path)
    with pytest.raises(NamespaceError, match="coil-there-is-none: No such file"):
        await network.check_pod(pod_plan(), path)
    assert not path.exists()
    assert host.state() == before


async def test_the_path_is_something_else(network: HostNetwork, host: Netns, tmp_path: Path) -> None:
    before = host.state()
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path, Path("/proc/self/ns/uts")):
        with pytest.raises(NamespaceError, match="not a network namespace"):
            await network.attach_pod(pod_plan(), NetnsPath(path))
    assert host.state() == before


async def test_the_nodes_own_namespace_is_no_pods(network: HostNetwork, host: Netns) -> None:
    before = host.state()
    with pytest.raises(NamespaceError, match="is the node's own"):
        await network.attach_pod(pod_plan(), host.path)
    assert host.state() == before


async def test_the_interface_is_in_the_pod_already(network: HostNetwork, host: Netns, pod: Netns) -> None:
    first = pod_plan(1)
    await network.attach_pod(first, pod.path)
    before = host.state(), pod.state()
    with pytest.raises(LinkExistsError, match=r"already eth0 in the pod$"):
        await network.attach_pod(pod_plan(2), pod.path)
    assert (host.state(), pod.state()) == before
    await network.check_pod(first, pod.path)


async def test_the_host_name_is_taken(
    network: HostNetwork, host: Netns, pod: Netns, new_netns: Callable[[], Netns]
) -> None:
    plan = pod_plan()
    await network.attach_pod(plan, pod.path)
    other = new_netns()
    before = host.state(), pod.state(), other.state()
    with pytest.raises(LinkExistsError, match=f"already {plan.host.name} in the host$"):
        await network.attach_pod(plan, other.path)
    with pytest.raises(LinkExistsError, match=f"already {plan.host.name} in the host and eth0 in the pod$"):
        await network.attach_pod(plan, pod.path)
    assert (host.state(), pod.state(), other.state()) == before


async def test_of_two_at_once_for_one_name_one_wins_whole(
    network: HostNetwork, host: Netns, new_netns: Callable[[], Netns]
) -> None:
    plan = pod_plan()
    for _ in range(10):
        pods = [new_netns(), new_netns()]
        results = await asyncio.gather(*(network.attach_pod(plan, pod.path) for pod in pods), return_exceptions=True)
        (winner,) = [pod for pod, result in zip(pods, results, strict=True) if result is None]
        (loser,) = [pod for pod, result in zip(pods, results, strict=True) if isinstance(result, LinkExistsError)]
        await network.check_pod(plan, winner.path)
        assert loser.link_names() == set()
        await network.detach_pod(plan.host.name)
        assert host.link_names() == set()


@pytest.mark.parametrize(
    ("command", "refused"),
    [
        # The second route of the host's batch: the first one and the addresses are there already.
        ("-6 route add fd64::1/128 dev lo table 116 proto 99", "add route fd64::1/128"),
        ("route add 10.64.0.1/32 dev lo table 116 proto 99 scope link", "add route 10.64.0.1/32"),
    ],
)
async def test_somebody_else_routes_the_address(
    network: HostNetwork, host: Netns, pod: Netns, command: str, refused: str
) -> None:
    host.ip(*command.split())
    before = host.state(), pod.state()
    with pytest.raises(KernelError, match=f"{refused}.*File exists"):
        await network.attach_pod(pod_plan(), pod.path)
    assert (host.state(), pod.state()) == before


async def test_the_pod_has_a_default_route_already(network: HostNetwork, host: Netns, pod: Netns) -> None:
    pod.ip("route", "add", "default", "dev", "lo")
    before = host.state(), pod.state()
    with pytest.raises(KernelError, match=r"add route 0\.0\.0\.0/0 via 169\.254\.1\.1 dev eth0.*File exists"):
        await network.attach_pod(pod_plan(), pod.path)
    assert (host.state(), pod.state()) == before


async def test_the_kernel_refuses_the_link_itself(network: HostNetwork, host: Netns, pod: Netns) -> None:
    before = host.state(), pod.state()
    plan = pod_plan(mtu=70_000)
    with pytest.raises(KernelError, match=f"create veth eth0 with peer {plan.host.name}: Invalid argument"):
        await network.attach_pod(plan, pod.path)
    assert (host.state(), pod.state()) == before


async def test_the_namespace_goes_away_under_a_pod(network: HostNetwork, host: Netns, pod: Netns) -> None:
    """Until the ADD is done its namespace is held; a namespace that goes right afterwards takes the veth with it."""
    plan = pod_plan()
    attach = asyncio.create_task(network.attach_pod(plan, pod.path))
    await asyncio.to_thread(pod.delete)
    with suppress(NamespaceError):
        await attach
    await network.detach_pod(plan.host.name)
    assert host.link(plan.host.name) is None
    assert host.read("route", "show", "table", "116") == []


class Gate:
    """Holds attachments at their beginning until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Semaphore(0)
        self._open = threading.Event()
        original = attachment.attach

        def attach(*args: Any, **kwargs: Any) -> None:
            self.reached.release()
            assert self._open.wait(10)
            original(*args, **kwargs)

        monkeypatch.setattr(attachment, "attach", attach)

    async def wait_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.acquire, timeout=60)

    def open(self) -> None:
        self._open.set()


@pytest.mark.parametrize("cancellations", [1, 3])
async def test_a_cancelled_attach_is_undone_before_the_caller_hears_of_it(
    network: HostNetwork, host: Netns, pod: Netns, monkeypatch: pytest.MonkeyPatch, cancellations: int
) -> None:
    before = host.state(), pod.state()
    gate = Gate(monkeypatch)
    task = asyncio.create_task(network.attach_pod(pod_plan(), pod.path))
    await gate.wait_reached()
    for _ in range(cancellations):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (host.state(), pod.state()) == before


async def test_a_cancelled_attach_that_fails_leaves_other_peoples_links(
    network: HostNetwork, host: Netns, pod: Netns, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = pod_plan()
    await network.attach_pod(plan, pod.path)
    gate = Gate(monkeypatch)
    task = asyncio.create_task(network.attach_pod(plan, pod.path))
    await gate.wait_reached()
    task.cancel()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await task
    await network.check_pod(plan, pod.path)


async def test_a_cancelled_attach_that_was_still_waiting_never_begins(
    network: HostNetwork, host: Netns, new_netns: Callable[[], Netns], monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = [new_netns() for _ in range(8)]
    gate = Gate(monkeypatch)
    tasks = [asyncio.create_task(network.attach_pod(pod_plan(number), pod.path)) for number, pod in enumerate(pods, 1)]
    await gate.wait_reached()
    tasks[-1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[-1]
    gate.open()
    await asyncio.gather(*tasks[:-1])
    assert pods[-1].link_names() == set()
    assert len(host.link_names()) == len(pods) - 1


_CRASH = """
import asyncio, os, sys
from pathlib import Path
from coil.netlink import attachment
from coil.netlink.connection import Connection
from coil.netlink.host import HostNetwork
from integration.netns.plans import pod_plan

host, pod, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
apply = Connection.apply

def apply_or_die(self, requests):
    global steps
    if steps == 0:
        os.kill(os.getpid(), 9)
    steps -= 1
    apply(self, requests)

async def main():
    async with HostNetwork(host) as network:
        Connection.apply = apply_or_die
        await network.attach_pod(pod_plan(), pod)

asyncio.run(main())
"""


async def test_what_a_crash_leaves_is_removed_at_the_next_start(
    host: Netns, pod: Netns, new_netns: Callable[[], Netns]
) -> None:
    async with HostNetwork(host.path) as network:
        kept = pod_plan(2)
        await network.attach_pod(kept, new_netns().path)
    before = host.state(), pod.state()
    for steps in range(1, 4):
        argv = [sys.executable, "-c", _CRASH, str(host.path), str(pod.path), str(steps)]
        crash = await asyncio.to_thread(subprocess.run, argv, timeout=30, check=False)
        assert crash.returncode == -9
        assert len(host.link_names()) == 2
        async with HostNetwork(host.path) as network:
            assert [link.name for link in await network.pod_links()] == [kept.host.name]
        assert (host.state(), pod.state()) == before
