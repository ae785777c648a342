"""Thousands of calls that are nearly right, through the plugin to a coild that works on a kernel: each is answered by a
CNI error or a result, and once all that was added is deleted, neither coild nor the kernel has a trace of any.

The seeds are fixed: the same calls on each run.
"""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from coil_cni.error import INTERNAL, NOT_AVAILABLE, TRY_AGAIN_LATER
from coil_cni.invocation import SUPPORTED
from integration.netns.netns import Netns
from integration.plugin.daemon import Daemon
from integration.plugin.executable import plugin_executable
from tests.coil.cnirpc.scripted_service import until
from tests.coil_cni.damage import damaged_call
from tests.coil_cni.edges import ENVIRON, NETCONF, Outcome, run_plugin
from tests.coil_cni.test_service import OLD, OLDEST, RESULT

pytestmark = pytest.mark.kernel

Call = tuple[dict[bytes, bytes], bytes]
Runner = Callable[[dict[bytes, bytes], bytes], Outcome]

PODS = 4
BATCH = 100
SEEDS = range(6)
BATCHES = 10
SEVERITY = 0.3
"""Not more than that, or most calls would end in the plugin."""
EXECUTED = 4
"""Batches that go through the executable. Beside the others they are few, as each call is a process."""
CROWD = 4
"""Calls at a time."""
COMMANDS = ("ADD", "ADD", "ADD", "DEL", "CHECK", "GC", "STATUS")
NAMES = ("eth0", "eth0", "eth0", "net1", "lo")
CODES = {1, 3, 4, 5, 6, 7, TRY_AGAIN_LATER, NOT_AVAILABLE, INTERNAL}
DEFECTS = ("the plugin failed", "coild failed", "coild's answer")


@pytest.fixture
async def daemon(new_netns: Callable[[], Netns], tmp_path: Path) -> AsyncIterator[Daemon]:
    async with Daemon.start(new_netns, tmp_path / "s", pods=PODS) as daemon:
        yield daemon


def call(random: Random, daemon: Daemon) -> Call:
    """A call about one of the pods, whose container is sometimes another's."""
    pod = random.randrange(PODS)
    container = random.choice([pod, pod, pod, random.randrange(PODS)])
    command = random.choice(COMMANDS)
    environ = ENVIRON | {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": f"c{container}",
        "CNI_NETNS": str(daemon.pods[pod].path),
        "CNI_IFNAME": random.choice(NAMES),
    }
    living = random.sample(range(PODS), random.randrange(PODS))
    conf: dict[str, Any] = NETCONF | {
        "cniVersion": random.choice(SUPPORTED if command in ("ADD", "DEL") else SUPPORTED[-1:]),
        "socket": str(daemon.socket),
        "cni.dev/valid-attachments": [{"containerID": f"c{each}", "ifname": "eth0"} for each in living],
    }
    if random.random() < (0.1 if command == "ADD" else 0.5):
        conf["prevResult"] = random.choice([RESULT, OLD, OLDEST])
    return damaged_call(random, environ, conf, severity=SEVERITY)


def execute(environ: dict[bytes, bytes], stdin: bytes) -> Outcome:
    """The same as `run_plugin`, by the executable; whom it connects to is not seen."""
    done = subprocess.run([plugin_executable()], env=environ, input=stdin, capture_output=True, timeout=60, check=False)
    assert done.stderr == b""
    return Outcome(done.returncode, done.stdout, connected=0)


def check_outcome(outcome: Outcome, environ: dict[bytes, bytes], stdin: bytes) -> None:
    """It is a result, or an error that a call and not a defect has brought about."""
    if outcome.status == 0:
        assert bool(outcome.output) is (environ[b"CNI_COMMAND"] == b"ADD"), (environ, stdin)
        if outcome.output:
            assert outcome.document["cniVersion"] in SUPPORTED, (environ, stdin)
        return
    assert outcome.code in CODES, (environ, stdin, outcome)
    assert not outcome.document["msg"].startswith(DEFECTS), (environ, stdin, outcome)


async def run_batch(daemon: Daemon, random: Random, run: Runner, *, at_once: int = 1) -> list[Outcome]:
    """The answers to so many damaged calls; then all that they have added is deleted."""
    calls = [call(random, daemon) for _ in range(BATCH)]
    outcomes: list[Outcome] = []
    for start in range(0, BATCH, at_once):
        some = calls[start : start + at_once]
        outcomes += await asyncio.gather(*(asyncio.to_thread(run, *each) for each in some))
    conf = json.dumps(NETCONF | {"socket": str(daemon.socket)}).encode()
    for (environ, stdin), outcome in zip(calls, outcomes, strict=True):
        check_outcome(outcome, environ, stdin)
        if environ[b"CNI_COMMAND"] == b"ADD" and outcome.status == 0:
            deleted = await asyncio.to_thread(run, environ | {b"CNI_COMMAND": b"DEL"}, conf)
            assert (deleted.status, deleted.output) == (0, b"")
    return outcomes


def added_in(outcomes: list[Outcome]) -> int:
    return sum(outcome.status == 0 and outcome.output != b"" for outcome in outcomes)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def rest(daemon: Daemon, tasks: int) -> None:
    """Return when nothing is under way any more, and no more tasks are there than before."""
    async with asyncio.timeout(60):
        await daemon.executor.wait_idle()
    await until(lambda: len(asyncio.all_tasks()) <= tasks)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
async def test_damaged_calls_leave_nothing(daemon: Daemon, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    random = Random(seed)
    kernel, tasks = daemon.kernel(), len(asyncio.all_tasks())
    outcomes: list[Outcome] = []
    open_files = 0
    for _ in range(BATCHES):
        outcomes += await run_batch(daemon, random, run_plugin)
        await rest(daemon, tasks)
        assert daemon.records == []
        assert daemon.kernel() == kernel
        # The first batch has started the threads that stay.
        open_files = open_files or descriptors()
    await until(lambda: descriptors() <= open_files)
    assert caplog.text == ""
    # Not all of it was refused at the door.
    added = added_in(outcomes)
    assert added > 100
    assert daemon.answered - added > 500


@pytest.mark.slow
async def test_damaged_calls_of_many_processes_leave_nothing(daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    random = Random(len(SEEDS))
    kernel, tasks = daemon.kernel(), len(asyncio.all_tasks())
    outcomes: list[Outcome] = []
    # Built before there are threads that would build it: the parser of Python 3.11 fails in several at once.
    plugin_executable()
    for _ in range(EXECUTED):
        outcomes += await run_batch(daemon, random, execute, at_once=CROWD)
        await rest(daemon, tasks)
        assert daemon.records == []
        assert daemon.kernel() == kernel
    assert caplog.text == ""
    added = added_in(outcomes)
    assert added > 30
    assert daemon.answered - added > 150
