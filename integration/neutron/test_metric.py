"""What coil-raven exports is what docs/metrics.md lists, no more and no less."""

from pathlib import Path

import pytest

from coil.kube.client import KubeClient
from integration.cluster.control_plane import ControlPlane
from integration.dashboard.documented import COMMON, differences, without_series
from integration.dashboard.exposition import parse_exposition
from integration.metrics_page import fetch_here
from integration.neutron.neutron_server import NeutronServer
from integration.neutron.raven_world import RavenWorld
from integration.patience import wait_until

pytestmark = [pytest.mark.neutron, pytest.mark.apiserver]

SECTION = "coil-raven"


async def test_it_exports_what_is_documented(plane: ControlPlane, admin: KubeClient, tmp_path: Path) -> None:
    with (
        NeutronServer.start(tmp_path, quotas={"quota_network": 1}) as neutron,
        RavenWorld.start(plane, admin, neutron, tmp_path) as world,
    ):
        # All namespaces but one are refused a network.
        wait_until(lambda: 'code="OverQuota"' in fetch_here(world.metrics), what="a refusal is counted")
        exported = parse_exposition(fetch_here(world.metrics))
    assert differences(exported, COMMON, SECTION) == []
    assert without_series([exported], SECTION) == []
