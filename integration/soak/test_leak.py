"""What a coild takes of the machine does not grow with the pods that it has served, and nothing is left of them.

COIL_LEAK_PODS=<number> is how many come and go in the long run. build/leak.json has how coild was meanwhile.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from integration.patience import wait_until_clean
from integration.soak.crowded_node import CrowdedNode, crowd_a_node
from integration.soak.footprint import Footprint

# COIL_LEAK_PODS makes it longer than any other test may take.
pytestmark = [pytest.mark.apiserver, pytest.mark.timing, pytest.mark.timeout(3600)]

REPORT = Path(__file__).resolve().parents[2] / "build" / "leak.json"
WIDTH = 32
"""Pods at a time."""

WARM_UP = 300
BURST = 1000
BURSTS = 3
USUAL_PODS = 1000
STEPS = 10

GROWTH = Footprint(descriptors=0, threads=8, rss=2560)
"""The most that coild may have grown by, once it is warm. The pool that detaches pods has up to sixteen threads, and
starts its last when that many batches are first under way. The interpreter takes memory by the mebibyte, and now and
then needs one more, or two, to find room between what lives on.
"""

BLOCKS = 400
"""The same of blocks of memory in use: fewer than one for each pod, and a forgotten attachment has nine. What was seen
is 107 in 3 500 pods, forty of them a thread's.
"""


@pytest.fixture(scope="module")
def crowded() -> Iterator[CrowdedNode]:
    """All threads are there, all caches are full."""
    with crowd_a_node(width=WIDTH) as crowded:
        crowded.crowd.come_and_go(WARM_UP)
        crowded.come_to_rest("warm")
        yield crowded
        crowded.end_sandboxes()


def growth(crowded: CrowdedNode, before: Footprint, blocks: int) -> list[str]:
    """What coild has now and had not before."""
    found = crowded.footprint.growth_faults(before, bound=GROWTH)
    now = crowded.count_blocks()
    return found if now - blocks <= BLOCKS else [*found, f"blocks of memory: {blocks} -> {now}"]


def test_a_burst_of_pods_leaves_coild_as_it_was(crowded: CrowdedNode) -> None:
    """Its memory at the latest with the third: how much a burst takes depends on how many of its pods meet, and the
    interpreter does not give back what it took for the most. What leaks grows with each. All else is what it was.
    """
    before, blocks = replace(crowded.footprint, rss=sys.maxsize), crowded.count_blocks()
    taken: list[int] = []
    while not taken or taken[-1] > GROWTH.rss:
        assert len(taken) < BURSTS, f"memory grew with each burst, in KiB by {taken}"
        rss = crowded.footprint.rss
        crowded.crowd.come_and_go(BURST)
        crowded.come_to_rest(f"{BURST} pods have come and gone")
        wait_until_clean(lambda: growth(crowded, before, blocks), after=f"{BURST} pods")
        taken.append(crowded.footprint.rss - rss)


def test_memory_is_flat_however_many_pods_come_and_go(crowded: CrowdedNode, capsys: pytest.CaptureFixture[str]) -> None:
    pods = int(os.environ.get("COIL_LEAK_PODS") or USUAL_PODS)
    half, blocks = crowded.footprint, 0
    began = time.monotonic()
    report = [f"before: {half}"]
    for step in range(1, STEPS + 1):
        crowded.crowd.come_and_go(pods // STEPS)
        report.append(f"{pods * step // STEPS} pods, {time.monotonic() - began:.0f} s: {crowded.footprint}")
        if step in (STEPS // 2, STEPS):
            crowded.come_to_rest(f"{pods * step // STEPS} pods have come and gone")
            report.append(f"at rest: {crowded.footprint}, {crowded.count_blocks()} blocks of memory in use")
        if step == STEPS // 2:
            half, blocks = crowded.footprint, crowded.count_blocks()
        REPORT.parent.mkdir(exist_ok=True)
        REPORT.write_text(json.dumps(report, indent=2) + "\n")
    with capsys.disabled():
        print("", report[0], *report[-2:], sep="\n", file=sys.stderr)
    wait_until_clean(lambda: growth(crowded, half, blocks), after=f"{pods} pods")
