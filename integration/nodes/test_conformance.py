"""Some of Kubernetes' own network conformance tests: of those that send packets, the fastest of each kind.

All of them, in clusters of other IP families as well, are run by `nox -s conformance`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from integration.cluster.family import ClusterFamilies
from integration.conformance.coredns import deploy_coredns, remove_coredns
from integration.conformance.images import build_images
from integration.conformance.report import Outcome, Result
from integration.conformance.stage import check_version
from integration.conformance.suite import Suite
from integration.helm.release import import_image
from integration.nodes.coil_cluster import DEFAULT_POOL, CoilCluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SPECS = [
    "API Server should provide secure master service [Conformance]",
    "DNS should provide DNS for services [Conformance]",
    "Networking Granular Checks: Pods should function for intra-pod communication: http [Conformance]"
    " [NodeConformance]",
    "Networking Granular Checks: Pods should function for node-pod communication: udp [LinuxOnly] [Conformance]"
    " [NodeConformance]",
    "Proxy version v1 should proxy through a service and a pod [Conformance]",
    "Services should be able to create a functioning NodePort service [Conformance]",
    "Services should have session affinity work for service with type clusterIP [LinuxOnly] [Conformance]",
    "Services should serve multiport endpoints from pods [Conformance]",
]
_PROCESSES = 3
_RESULTS = Path(__file__).parents[2] / "build" / "conformance" / "cluster"


@pytest.fixture(scope="module")
def results(coil: CoilCluster) -> Iterator[Mapping[str, Result]]:
    """By names, of all at once; their pods draw from the default pool, and so do CoreDNS's."""
    check_version(coil.plane)
    import_image(coil.cluster, build_images())
    with coil.room(pool=DEFAULT_POOL, bits=5):
        deploy_coredns(coil.plane, ClusterFamilies.IPV4_FIRST)
        try:
            found = Suite(coil.cluster, _RESULTS).run([_full(spec) for spec in SPECS], processes=_PROCESSES)
            yield {result.name: result for result in found}
        finally:
            remove_coredns(coil.plane)


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_of_kubernetes_passes(results: Mapping[str, Result], spec: str) -> None:
    result = results[_full(spec)]
    assert result.outcome is Outcome.PASSED, f"{result.message}\nlogs: {_RESULTS}"


def _full(spec: str) -> str:
    return f"[sig-network] {spec}"
