"""The election on the real kube-apiserver: leaders that leave, die, freeze, and a server that goes away."""

import math
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from coil.kube.client import KubeClient
from coil.kube.lease_lock import LeaseLock
from coil.manager.claim import boot_clock
from coil.manager.election import EXIT_LEASE_EXPIRED
from integration.cluster.control_plane import ControlPlane
from integration.patience import TIMEOUT, wait_until
from tests.coil.reconcile.lease_contract import CHECKS, Check

pytestmark = pytest.mark.apiserver

NAMESPACE = "kube-system"
LEASE = 15
"""Seconds. Three fifths of it without a renewal end a term; a busy machine keeps nobody waiting for as long."""

LONG_LEASE = 120
"""Of a leader that is not to lose its lease while the API server is away, and whose lease nobody waits for."""

DEATHS = (2, pytest.param(10, marks=pytest.mark.slow))


class Contender:
    """A process and its diary."""

    def __init__(self, process: subprocess.Popen[bytes], diary: Path) -> None:
        self.process = process
        self._diary = diary

    def entries(self, word: str = "") -> list[float]:
        """When it noted `word`, or anything; the last line may still be on its way to the file."""
        lines = self._diary.read_text().split("\n")[:-1] if self._diary.exists() else []
        return [float(line.split()[0]) for line in lines if line.endswith(word)]

    @property
    def leading(self) -> bool:
        return len(self.entries("begin")) > len(self.entries("end"))

    def signal(self, number: signal.Signals) -> float:
        """Send a signal; returns when."""
        self.process.send_signal(number)
        return boot_clock()

    def wait(self) -> int:
        return self.process.wait(TIMEOUT)


class Contest:
    """Contenders for one Lease that nobody else knows."""

    def __init__(self, plane: ControlPlane, folder: Path, undo: ExitStack) -> None:
        self._plane = plane
        self._folder = folder
        self._undo = undo
        self.lease_name = f"election-{secrets.token_hex(4)}"
        self.contenders: list[Contender] = []

    def enter(self, *, lease: int = LEASE) -> Contender:
        number = len(self.contenders)
        diary = self._folder / f"diary-{number}"
        log = self._undo.enter_context((self._folder / f"log-{number}").open("wb"))
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "integration.apiserver.contender",
                str(self._plane.admin_kubeconfig),
                NAMESPACE,
                self.lease_name,
                str(lease),
                str(diary),
            ],
            stderr=log,
        )
        self._undo.callback(process.wait)
        self._undo.callback(process.kill)
        contender = Contender(process, diary)
        self.contenders.append(contender)
        return contender

    def field(self, path: str) -> str:
        return self._plane.kubectl(
            "get", "lease", self.lease_name, f"--namespace={NAMESPACE}", f"--output=jsonpath={{.{path}}}"
        )

    def assert_one_at_a_time(self) -> None:
        """No line of one contender's term lies within another's."""
        spans: list[tuple[float, float, int]] = []
        for number, contender in enumerate(self.contenders):
            entries = contender.entries()
            begins = contender.entries("begin")
            for begin, following in zip(begins, [*begins, math.inf][1:], strict=True):
                spans.append((begin, max(when for when in entries if begin <= when < following), number))
        spans.sort()
        for before, after in pairwise(spans):
            assert before[1] < after[0], f"two were at work: {before} and {after}"


@pytest.fixture
def contest(apiserver: ControlPlane, tmp_path: Path) -> Iterator[Contest]:
    apiserver.start_apiserver()
    with ExitStack() as undo:
        contest = Contest(apiserver, tmp_path, undo)
        yield contest
        contest.assert_one_at_a_time()
    apiserver.start_apiserver()
    apiserver.kubectl("delete", "lease", contest.lease_name, f"--namespace={NAMESPACE}", "--ignore-not-found=true")


def leads(contender: Contender) -> Callable[[], bool]:
    return lambda: contender.leading


def await_leader(standing: list[Contender]) -> Contender:
    found: list[Contender] = []

    def look() -> bool:
        found[:] = [each for each in standing if each.leading]
        return bool(found)

    wait_until(look, what="somebody leads")
    return found[0]


def two(contest: Contest, *, lease: int = LEASE) -> tuple[Contender, Contender]:
    """A leader and one who stands by."""
    first = contest.enter(lease=lease)
    wait_until(leads(first), what="the first leads")
    return first, contest.enter(lease=lease)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
async def test_the_real_store_keeps_the_contract(apiserver: ControlPlane, check: Check) -> None:
    name = f"contract-{secrets.token_hex(4)}"

    async def delete() -> None:
        apiserver.kubectl("delete", "lease", name, f"--namespace={NAMESPACE}", "--ignore-not-found=true")

    apiserver.start_apiserver()
    async with KubeClient.connect(apiserver.admin_kubeconfig) as client:
        try:
            await check(LeaseLock(client=client, namespace=NAMESPACE, name=name), delete)
        finally:
            await delete()


def test_a_leader_that_leaves_is_replaced_long_before_its_lease_is_over(contest: Contest) -> None:
    lease = 60
    first, second = two(contest, lease=lease)
    assert contest.field("spec.leaseDurationSeconds") == str(lease)
    left = first.signal(signal.SIGTERM)
    assert first.wait() == 0
    wait_until(leads(second), what="the second leads")
    # One retry period, a tenth of the lease; far from the whole lease, even on a busy machine.
    assert second.entries("begin")[0] - left < lease / 2
    assert contest.field("spec.leaseTransitions") == "1"


def test_a_killed_leader_is_replaced_when_its_lease_is_over(contest: Contest) -> None:
    first, second = two(contest)
    first.signal(signal.SIGKILL)
    wait_until(leads(second), what="the second leads")
    # Its last renewal was before its last line, by a retry period and a call at most.
    assert second.entries("begin")[0] - first.entries()[-1] > LEASE * (1 - 0.1 - 0.3)


def test_a_frozen_leader_does_nothing_when_it_wakes(contest: Contest) -> None:
    first, second = two(contest)
    first.signal(signal.SIGSTOP)
    wait_until(leads(second), what="the second leads")
    first.signal(signal.SIGCONT)
    assert first.wait() == EXIT_LEASE_EXPIRED


@pytest.mark.timing
def test_a_leader_without_an_api_server_stops_before_its_lease_is_over(
    contest: Contest, apiserver: ControlPlane
) -> None:
    first, second = two(contest)
    apiserver.stop_apiserver()
    stopped = boot_clock()
    wait_until(lambda: not first.leading, what="the first stops")
    assert first.entries("end")[-1] - stopped < LEASE
    apiserver.start_apiserver()
    wait_until(lambda: first.leading or second.leading, what="somebody leads again")


def test_a_leader_without_an_api_server_stops_and_one_of_them_comes_back(
    contest: Contest, apiserver: ControlPlane
) -> None:
    first, second = two(contest)
    apiserver.stop_apiserver()
    wait_until(lambda: not first.leading, what="the first stops")
    assert first.process.poll() is None, "it ended its work, not itself"
    apiserver.start_apiserver()
    wait_until(lambda: first.leading or second.leading, what="somebody leads again")


def test_a_restart_and_a_compaction_are_survived(contest: Contest, apiserver: ControlPlane) -> None:
    first, second = two(contest, lease=LONG_LEASE)
    apiserver.compact_etcd()
    apiserver.restart_apiserver()
    renewed = contest.field("spec.renewTime")
    wait_until(lambda: contest.field("spec.renewTime") != renewed, what="the lease is renewed")
    assert first.leading
    assert len(first.entries("begin")) == 1
    assert not second.entries("begin")


@pytest.mark.parametrize("deaths", DEATHS)
def test_three_contenders_whose_leader_dies_again_and_again(contest: Contest, deaths: int) -> None:
    """Whoever leads is killed or asked to leave, in turn; one of the others goes on, and a new one enters."""
    standing = [contest.enter() for _ in range(3)]
    for number in range(deaths):
        leader = await_leader(standing)
        leader.signal(signal.SIGKILL if number % 3 == 0 else signal.SIGTERM)
        leader.wait()
        standing.remove(leader)
        standing.append(contest.enter())
