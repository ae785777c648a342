"""All that a check finds, in the order in which it is told."""

from coil_migrator.check.cluster import Cluster
from coil_migrator.check.egress_gateways import check_gateways
from coil_migrator.check.egress_policies import check_policies
from coil_migrator.check.egressgateway import check_egressgateway
from coil_migrator.check.egressgateway_settings import check_settings
from coil_migrator.check.finding import Finding, Severity
from coil_migrator.check.nodes import check_nodes
from coil_migrator.check.objects import check_egresses, check_pods, check_pools
from coil_migrator.check.programs import check_programs


def check(cluster: Cluster) -> list[Finding]:
    """The most severe first. Pure."""
    found = [
        *check_egressgateway(cluster),
        *check_settings(cluster),
        *check_gateways(cluster),
        *check_policies(cluster),
        *check_pools(cluster),
        *check_egresses(cluster),
        *check_pods(cluster),
        *check_programs(cluster),
        *check_nodes(cluster),
    ]
    order = list(Severity)
    return sorted(found, key=lambda finding: order.index(finding.severity))
