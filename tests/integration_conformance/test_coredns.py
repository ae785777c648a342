"""What CoreDNS is asked for in clusters of different families."""

from typing import Any

import pytest

from integration.cluster.family import ClusterFamilies
from integration.conformance import coredns


@pytest.mark.parametrize(
    ("families", "addresses", "policy"),
    [
        (ClusterFamilies.IPV4_FIRST, ["198.19.0.10", "fd5f:c011::a"], "RequireDualStack"),
        (ClusterFamilies.IPV6_FIRST, ["fd5f:c011::a", "198.19.0.10"], "RequireDualStack"),
        (ClusterFamilies.IPV4_ONLY, ["198.19.0.10"], "SingleStack"),
        (ClusterFamilies.IPV6_ONLY, ["fd5f:c011::a"], "SingleStack"),
    ],
)
def test_the_service_has_the_addresses_that_pods_are_told(
    families: ClusterFamilies, addresses: list[str], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[dict[str, Any]] = []
    monkeypatch.setattr(coredns, "apply", lambda plane, *documents: applied.extend(documents))

    class Plane:
        def kubectl(self, *arguments: str, timeout: float) -> str:
            assert "rollout" in arguments
            return ""

    plane: Any = Plane()
    coredns.deploy_coredns(plane, families)

    [service] = [document for document in applied if document["kind"] == "Service"]
    assert service["spec"]["clusterIPs"] == addresses
    assert service["spec"]["clusterIP"] == addresses[0]
    assert service["spec"]["ipFamilyPolicy"] == policy
    [configuration] = [document for document in applied if document["kind"] == "ConfigMap"]
    for document in applied:
        # Whatever is made is also removed.
        assert document["metadata"]["name"] in {coredns.NAME, coredns.SERVICE}
    # Nobody outside is asked: nothing of a cluster under test leaves the machine.
    assert "forward" not in configuration["data"]["Corefile"]
