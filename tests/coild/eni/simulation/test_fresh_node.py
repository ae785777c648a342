"""A fresh node has addresses as soon as EC2 can have told and given them, and hardly later."""

from pathlib import Path

import pytest

from tests.coild.eni.simulation.fresh_node import CHAIN_FIFTY, CHAIN_FIRST, start_with_pods


@pytest.mark.parametrize(("pods", "chain"), [(1, CHAIN_FIRST), (50, CHAIN_FIFTY)])
async def test_from_the_start_of_the_process_to_the_pods(tmp_path: Path, pods: int, chain: float) -> None:
    assert chain <= await start_with_pods(tmp_path, pods) <= chain + 1.0
