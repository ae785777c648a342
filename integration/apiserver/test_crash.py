"""kill -9 at any instruction: no address given twice, none leaked, no block without an owner.

CNI operations by the hundred, of eight kubelets, imitated, on a real node against a real API server, while coild and
the ipam-controller are killed in the middle of their work and started again. Pools are small and so are blocks, so that
both come back often. The seed is printed; COIL_SEED=<seed> makes the same choices again.
"""

import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest

from integration.apiserver.audit import find_faults, find_record_faults
from integration.apiserver.bare_node import BareNode
from integration.apiserver.event_record import EventRecord
from integration.apiserver.executioner import Executioner, Moment, Victim, draw_kills
from integration.apiserver.kubelet import Kubelet, live_pods
from integration.apiserver.tally import Tally
from integration.cluster.control_plane import ControlPlane
from integration.patience import wait_until_clean

pytestmark = [pytest.mark.apiserver, pytest.mark.slow]

BUILD = Path(__file__).resolve().parents[2] / "build"
KUBELETS = 8
MOST_ROUNDS = 5
ROUNDS = (2, MOST_ROUNDS)
PODS_PER_ROUND = 7  # of each kubelet
OPERATIONS = 100  # at least, in each round
KILLS = {Victim.COILD: 20, Victim.CONTROLLER: 12}
"""In MOST_ROUNDS; in fewer, as many less."""

POOLS = {"plain": "default", "annotated": "second"}
"""The pool of each namespace."""


@pytest.fixture
def node(plane: ControlPlane) -> Iterator[BareNode]:
    with BareNode.up(plane) as node:
        node.make_pool("default", {"ipv4": "10.71.0.0/26", "ipv6": "fd71::/122"}, bits=2)
        node.make_pool(
            "second",
            {"ipv4": "10.72.0.0/27", "ipv6": "fd72::/123"},
            {"ipv4": "10.73.0.0/27", "ipv6": "fd73::/123"},
            bits=3,
        )
        node.make_namespace("plain")
        node.make_namespace("annotated", pool="second")
        yield node


@contextmanager
def logs_kept(node: BareNode, seed: str) -> Iterator[None]:
    """When the test fails, what the programs have said survives it, in build/crash-<seed>."""
    try:
        yield
    except BaseException:
        kept = BUILD / f"crash-{seed}"
        shutil.copytree(node.workspace.folder / "logs", kept, dirs_exist_ok=True)
        print(f"the logs are in {kept}")
        raise


@pytest.mark.parametrize("rounds", ROUNDS)
def test_no_address_is_given_twice_and_none_leaks_whatever_is_killed(
    node: BareNode, rounds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = os.environ.get("COIL_SEED") or secrets.token_hex(4)
    with capsys.disabled():
        print(f"\nCOIL_SEED={seed}", file=sys.stderr)
    with logs_kept(node, seed):
        crash_repeatedly(node, seed, rounds)


def crash_repeatedly(node: BareNode, seed: str, rounds: int) -> None:
    operations = rounds * OPERATIONS
    runtime = node.install_plugin()
    blocks, requests = EventRecord(node, "addressblocks"), EventRecord(node, "blockrequests")
    victims = {
        Victim.CONTROLLER: node.start_controller(),
        Victim.COILD: node.start_coild("--cooling=200ms", "--addressblock-gc-interval=2s"),
    }
    tally = Tally()
    kubelets = [
        Kubelet(node, runtime, seed=seed, number=number, namespaces=list(POOLS), tally=tally)
        for number in range(KUBELETS)
    ]
    deaths = {victim: rounds * count // MOST_ROUNDS for victim, count in KILLS.items()}
    kills = draw_kills(Random(f"{seed}/kills"), operations=operations, counts=deaths)
    counts = {
        Moment.PROMISE: partial(requests.count, is_promise),
        Moment.BLOCK: partial(blocks.count, is_creation),
    }
    executioner = Executioner(kills, victims=victims, counts=counts, tally=tally)
    with ThreadPoolExecutor(max_workers=KUBELETS) as pool, executioner:
        for number in range(rounds):
            together(pool, [partial(kubelet.run, PODS_PER_ROUND) for kubelet in kubelets])
            pods = live_pods(kubelets)
            wait_until_clean(partial(find_faults, node, pods, POOLS), after=f"{len(pods)} pods run, {tally}")
            together(pool, [kubelet.end_all for kubelet in kubelets])
            wait_until_clean(
                partial(find_faults, node, {}, POOLS), after=f"all pods of round {number} have ended, {tally}"
            )
    wait_until_clean(lambda: sorted(blocks.present() | requests.present()), after="what the record still shows")
    print(f"{tally}, {len(executioner.done)} kills, {len(blocks.first_versions())} blocks came and went")

    assert find_record_faults(blocks, requests, node.objects("addresspools")) == []
    assert executioner.done == kills
    assert tally.successes >= operations
    # The run was what it was meant to be.
    assert tally.failures > 0, "no kill has hit anything"
    assert tally.reused > 0, "no address came back"
    assert len(blocks.first_versions()) >= rounds * len(POOLS), "blocks did not come back"


def together(pool: Executor, works: Sequence[Callable[[], None]]) -> None:
    """Do all at once; the first failure is raised."""
    for work in [pool.submit(work) for work in works]:
        work.result()


def is_promise(event: bytes) -> bool:
    """Whether a request is between the promise of a block and its answer."""
    return b'"addressBlockName"' in event and b'"conditions"' not in event


def is_creation(event: bytes) -> bool:
    return event.startswith(b'{"type":"ADDED"')
