"""Floating egress addresses on real nodes without IPv4, and on such whose first family is IPv6."""

import pytest

from integration.demo.outside_server import serve_outside
from integration.nodes.coil_cluster import CoilCluster, Families
from integration.nodes.eip_gateway import (
    CHOSEN,
    GATEWAY,
    await_seen,
    eip_of,
    gateway_document,
    gateway_nodes,
    policy_document,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_a_chosen_pod_is_seen_outside_as_its_eip_and_speaks_for_itself_within(other: CoilCluster) -> None:
    here, there = other.nodes
    families = other.cluster.network.families.value
    with (
        serve_outside(other.cluster.network) as outside,
        gateway_nodes(other, here),
        other.room(Families.DUAL if 4 in families else Families.IPV6) as room,
    ):
        assert tuple(outside) == families
        other.release.apply(gateway_document(other), policy_document(room))
        try:
            room.run(*(room.pod(name, there) for name in (CHOSEN, "plain")), room.pod("answering", here))
            for family, place in outside.items():
                await_seen(room, place, as_=eip_of(other, family))
            assert len(room.pods()) == 3
            assert room.find_gaps() == []
        finally:
            room.kubectl("delete", "egressgatewaypolicies", "--all", "--timeout=180s")
            other.plane.kubectl("delete", "egressgateway", GATEWAY, "--timeout=180s")
