"""A fleet within the calls that EC2 grants one account: everybody is served, and nothing is asked for in vain for long.

2 000 nodes run with `nox -s aws_simulation`.
"""

from pathlib import Path

import pytest

from tests.coild.eni.simulation.fleet import PODS, FleetWorld, least_seconds


@pytest.mark.parametrize("size", [60, pytest.param(2000, marks=pytest.mark.slow)])
async def test_a_cold_start_and_a_rolling_restart(tmp_path: Path, size: int) -> None:
    world = FleetWorld(directory=tmp_path, size=size)
    cold = await world.start_cold()
    assert len(cold.waits) == size * PODS
    # The last node has its first addresses when EC2 has granted as many calls as there are nodes.
    assert cold.worst_wait <= 1.5 * least_seconds("AssignPrivateIpAddresses", size) + 30.0
    restart = await world.restart(at_once=size // 10, pause=5.0)
    assert len(restart.waits) == size
    assert restart.worst_wait <= 5.0, "warm addresses do not wait for EC2"
    await world.end()
