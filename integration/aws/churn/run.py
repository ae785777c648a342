"""Pods in waves over some nodes of an EC2 that refuses, is slow and forgets nothing, with coild killed at random; then
rest, and the end of the nodes.

    Kubelet, Killer ─► plugin, coild ─► EC2, kernels
                                          │
    PodRegister ◄──── AccountWatch, DeletionWatch, KernelWatch

The first violation ends the churn. What is drawn follows from the seed; what it meets does not.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from subprocess import CalledProcessError
from typing import Final

from coil.eni.orphan import ORPHAN_SECONDS
from coil.eni.warm_pool import NodeLimits, WarmTargets
from coil_ipam_controller.eni.orphan_collector import OrphanCollector
from coild.eni.call_rests import ATTACH
from integration.aws.churn.account import AccountWatch, find_account_faults
from integration.aws.churn.journal import find_journal_faults
from integration.aws.churn.kernel import DeletionWatch, KernelWatch, find_kernel_leftovers
from integration.aws.churn.kubelet import AbortedError, Killer, Kubelet
from integration.aws.churn.register import PodRegister
from integration.aws.ec2_state import read_state
from integration.aws.leader import LeaderScene
from integration.aws.node import CLUSTER, EniNode
from integration.aws.world import EniWorld
from integration.patience import wait_until, wait_until_clean
from tests.coil.aws.faults import Call
from tests.coild.eni.simulation.churn import Weather
from tests.coild.eni.simulation.trace import PodRun

REST_SECONDS: Final = 300.0
"""In which all is at rest after the last pod, which only a failure takes."""
_MOST_THREADS: Final = 256
_SOON: Final = 1.0
"""Seconds for which an address has been too many at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnPlan:
    """What is done, and how coild is set; `sweep` is for pods whose DEL was missed. Times are in seconds."""

    seed: int
    runs: Sequence[PodRun]
    weather: Weather
    targets: WarmTargets
    cooldown: float
    unneeded: float
    sweep: float

    def flags(self, *, unneeded: float | None = None) -> tuple[str, ...]:
        """coild's."""
        targets = self.targets
        wanted = {
            "--cooling": f"{self.cooldown:g}s",
            "--eni-describe-lag": "1s",
            "--addressblock-gc-interval": f"{self.sweep:g}s",
            "--eni-unneeded-time": f"{self.unneeded if unneeded is None else unneeded:g}s",
            "--warm-eni-target": targets.interfaces,
            "--warm-ip-target": targets.ips,
            "--minimum-ip-target": targets.minimum,
        }
        return tuple(f"{name}={value}" for name, value in wanted.items() if value is not None)

    def warm(self, slots: int) -> int:
        """The addresses that an instance without pods is to have; an interface has so many `slots`."""
        targets = self.targets
        if targets.ips is None and targets.minimum is None:
            return targets.interfaces * (slots - 1)
        return max(targets.ips or 0, targets.minimum or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnReport:
    """`calls` are all that were answered while there were pods, refused ones among them."""

    pods: int
    seconds: float
    calls: Sequence[Call]
    waits: Sequence[float]
    later: int
    kills: int
    looks: int
    reused: int
    moved: int
    given_back: int

    @property
    def calls_per_100_pods(self) -> float:
        return 100 * len(self.calls) / self.pods

    @property
    def refused(self) -> int:
        """How many of the calls."""
        return sum(call.error == "RequestLimitExceeded" for call in self.calls)

    def __str__(self) -> str:
        actions = Counter(call.action for call in self.calls)
        waits = sorted(self.waits)
        return (
            f"{self.pods} pods in {self.seconds:.0f} s, coild killed {self.kills} times, {self.later} operations to be "
            f"tried again; waits: median {waits[len(waits) // 2]:.1f} s, longest {waits[-1]:.1f} s; "
            f"{self.reused} addresses used again, {self.moved} of them on another node, {self.given_back} given back; "
            f"{self.looks} looks at the kernels; {len(self.calls)} calls, {self.refused} of them refused, "
            f"{self.calls_per_100_pods:.1f} for 100 pods: "
            + ", ".join(f"{count} {action}" for action, count in actions.most_common())
        )


@dataclass(slots=True, kw_only=True)
class Churn:
    """`play`, `rest`, `lose` and `end`, in this order; each raises AssertionError with all that is wrong."""

    world: EniWorld
    plan: ChurnPlan
    limits: NodeLimits
    """Of the instances' type."""
    _register: PodRegister = field(init=False)
    _ended: list[EniNode] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._register = PodRegister(cooldown=self.plan.cooldown)

    def play(self) -> ChurnReport:
        """All pods, from the first one's start to the last one's end."""
        world, plan, register = self.world, self.plan, self._register
        ec2, weather = world.ec2, plan.weather
        ec2.faults.random = Random(plan.seed)
        ec2.faults.throttled, ec2.faults.latency = weather.throttled, weather.latency
        world.metadata.lag = weather.metadata_lag
        begun = time.monotonic()
        self._on_all(lambda node: node.start_coild(*plan.flags()))
        with ExitStack() as stack:
            account = stack.enter_context(AccountWatch(ec2, register))
            for node in world.nodes:
                stack.enter_context(DeletionWatch(node, register))
            watch = stack.enter_context(KernelWatch(world.nodes, register))
            kubelets = [Kubelet(world, node, register, account) for node in world.nodes]
            with ExitStack() as killing:
                killers = [
                    killing.enter_context(Killer(node, weather, Random(f"{plan.seed}/{node.name}"), register))
                    for node in world.nodes
                ]
                self._run_pods(kubelets)
            calls = list(ec2.calls)
        _refuse(register.violations)
        return ChurnReport(
            pods=len(plan.runs),
            seconds=time.monotonic() - begun,
            calls=calls,
            waits=[wait for kubelet in kubelets for wait in kubelet.waits],
            later=sum(len(kubelet.later) for kubelet in kubelets),
            kills=sum(killer.kills for killer in killers),
            looks=watch.looks,
            reused=register.reused,
            moved=register.moved,
            given_back=account.given_back,
        )

    def rest(self) -> None:
        """After a while without pods: nothing is left of them, and no more addresses than are to be warm."""
        for node in self.world.nodes:
            node.coild.ensure_running()
            # So that what is too many goes back in this test's time.
            node.coild.process.stop()
        self._on_all(lambda node: node.start_coild(*self.plan.flags(unneeded=_SOON)))
        wait_until_clean(lambda: list(self._find_faults()), after="the last pod", timeout=REST_SECONDS)
        for node in self.world.nodes:
            node.coild.process.stop()
        cooldown = self.plan.cooldown
        _refuse([fault for node in self.world.nodes for fault in find_journal_faults(node, cooldown=cooldown)])

    async def lose(self) -> None:
        """A node ends for good while an interface is made for it; ipam-controller's leader deletes that one."""
        # One that has room for another interface, and wants all that it can have.
        lost, ec2 = min(self.world.nodes, key=lambda node: len(node.instance.interfaces)), self.world.ec2
        ec2.faults.throttled = ec2.faults.latency = 0.0
        ec2.faults.refusals[ATTACH] = ["RequestLimitExceeded"] * 1000
        lost.start_coild(f"--warm-eni-target={self.limits.interfaces}")
        wait_until(self._unattached, what=f"an interface is being made for {lost.name}", pause=0.01)
        self._end(lost)
        self._ended.append(lost)
        assert self._unattached()
        leader = LeaderScene(ec2, cluster=CLUSTER)
        collector = OrphanCollector(leader.deps)
        async with leader.connect() as client:
            for leader.clock in (0.0, ORPHAN_SECONDS):
                await collector.round(client)
        _refuse([f"{each} is attached to nothing" for each in self._unattached()])

    def end(self) -> None:
        """Of all nodes that are left: nothing of them stays in the account. No packet has had a foreign source."""
        for node in set(self.world.nodes) - set(self._ended):
            node.coild.start()
            node.coild.wait_ready()
            self._end(node)
        left = set(read_state(self.world.ec2).interfaces.values()) - set(self.world.endpoint.interfaces)
        _refuse([f"{each.id} is left" for each in left])
        _refuse(self.world.spoofed())

    # --- inside

    def _run_pods(self, kubelets: Sequence[Kubelet]) -> None:
        """Each pod at its time. Returns after the last one's end, or early with a violation in the register."""
        begun, failed = time.monotonic(), self._register.failed
        with ThreadPoolExecutor(max_workers=_MOST_THREADS) as threads:
            futures = []
            for run in self.plan.runs:
                if failed.wait(max(0.0, begun + run.start - time.monotonic())):
                    break
                future = threads.submit(kubelets[run.node].run_pod, run)
                future.add_done_callback(lambda done: failed.set() if done.exception() is not None else None)
                futures.append(future)
        for future in futures:
            if isinstance(error := future.exception(), Exception) and not isinstance(error, AbortedError):
                self._register.accuse(repr(error))

    def _find_faults(self) -> Iterator[str]:
        nodes = self.world.nodes
        instances = [node.instance.id for node in nodes]
        state = read_state(self.world.ec2)
        yield from find_account_faults(state, instances, warm=self.plan.warm(self.limits.slots))
        for node in nodes:
            yield from find_kernel_leftovers(node)
            yield from _find_page_faults(node)

    def _unattached(self) -> list[str]:
        return [each.id for each in read_state(self.world.ec2).interfaces.values() if not each.instance]

    def _end(self, node: EniNode) -> None:
        node.coild.kill()
        node.destroy_sandboxes()
        node.instance.stop()
        self.world.ec2.terminate(node.instance.id)

    def _on_all(self, work: Callable[[EniNode], None]) -> None:
        with ThreadPoolExecutor() as threads:
            list(threads.map(work, self.world.nodes))


def _refuse(faults: Sequence[str]) -> None:
    if faults:
        raise AssertionError("\n".join(faults))


def _find_page_faults(node: EniNode) -> Iterator[str]:
    try:
        page = node.page()
    except CalledProcessError:
        yield f"coild on {node.name} says nothing"
        return
    counts = page["addresses"]
    if busy := {key: counts[key] for key in ("allocated", "cooling", "withheld") if counts[key]}:
        yield f"{node.name} says of its addresses: {busy}"
    if page["waiting"] or page["lost"]:
        yield f"{node.name} has pods that wait or have lost their addresses"
