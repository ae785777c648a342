"""A soak with faults: whatever is killed, restarted, cut off or overloaded, in the end everything agrees.

The seed is printed; COIL_SEED=<seed> draws the same faults and the same wishes again (not the same interleaving).
COIL_SOAK_OPERATIONS=<number> lengthens the run. When it fails, history and logs stay in build/soak-<seed>.
"""

import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.soak.fault import Kind
from integration.soak.footprint import Footprint
from integration.soak.history import History
from integration.soak.run import USUAL_OPERATIONS, Soak
from integration.soak.world import COOLING_SECONDS, World, build_world

# COIL_SOAK_OPERATIONS makes it longer than any other test may take.
pytestmark = [pytest.mark.apiserver, pytest.mark.timing, pytest.mark.timeout(3600)]

BUILD = Path(__file__).resolve().parents[2] / "build"
GROWTH = Footprint(descriptors=30, threads=24, rss=40 * 1024)
"""The most that a coild may have grown by since the soak began."""

# Not "forbidden": an API server that has just started knows no roles yet, and says 403 to everybody.
BAD_WORDS = re.compile(r"Traceback|\"exception\"|never retrieved")
OVERLOADED = re.compile(r"HTTP 429\b")


@contextmanager
def history_kept(world: World) -> Iterator[None]:
    """When the test fails, what happened and what the programs said survive it."""
    try:
        yield
    except BaseException:
        kept = BUILD / f"soak-{world.history.seed}"
        shutil.copytree(world.log_folder, kept, dirs_exist_ok=True)
        (kept / "history.txt").write_text(world.history.text())
        print(f"history and logs are in {kept}")
        raise


def find_lines(world: World, wanted: re.Pattern[str]) -> list[str]:
    """Those that have it, in the logs of Coil's programs."""
    return [
        f"{log.name}: {line}"
        for pattern in ("coild-*.log", "controller-*.log")
        for log in sorted(world.log_folder.glob(pattern))
        for line in log.read_text(errors="replace").splitlines()
        if wanted.search(line)
    ]


def test_everything_agrees_whatever_fails(capsys: pytest.CaptureFixture[str]) -> None:
    seed = os.environ.get("COIL_SEED") or secrets.token_hex(4)
    operations = int(os.environ.get("COIL_SOAK_OPERATIONS") or USUAL_OPERATIONS)
    with capsys.disabled():
        print(f"\nCOIL_SEED={seed}", file=sys.stderr)
    history = History(seed)
    began = time.monotonic()
    with build_world(history) as world, history_kept(world):
        soak = Soak(world, operations=operations)
        before = soak.footprints()
        soak.run()
        after = soak.footprints()
        refusals = find_lines(world, OVERLOADED)
        hasty = soak.hasty_returns()
        report = {
            "seed": seed,
            "seconds": round(time.monotonic() - began),
            "operations": soak.tally.report(),
            "done": soak.tally.done,
            "later": soak.tally.later,
            "faults": {kind.value: soak.saboteur.done[kind] for kind in Kind},
            "refused with 429": len(refusals),
            "looks": soak.looks,
            "addresses used again": soak.allocations.reused,
            "used again before they had rested": len(soak.allocations.returns(within=COOLING_SECONDS)),
            "without a reason that holds": [str(entry) for entry in hasty],
            "footprints": {name: [str(before[name]), str(after[name])] for name in after},
        }
        BUILD.mkdir(exist_ok=True)
        (BUILD / "soak.json").write_text(json.dumps(report, indent=2) + "\n")
        with capsys.disabled():
            counts = (
                f"{soak.tally.done} operations, {soak.tally.later} more told to try again, {len(soak.faults)} faults"
            )
            print(counts, file=sys.stderr)

        assert history.violations() == []
        assert find_lines(world, BAD_WORDS) == []
        assert hasty == []
        assert soak.tally.done >= operations
        assert soak.saboteur.done.total() == len(soak.faults)
        # A coild that was killed late is young; one of them is not.
        assert {name: after[name].growth_faults(before[name], bound=GROWTH) for name in after} == {
            name: [] for name in after
        }
        # The run was what it was meant to be.
        assert soak.tally.later > 0, "no fault has hit anything"
        assert soak.allocations.reused > 0, "no address came back"
        assert refusals, "the API server was never overloaded"
