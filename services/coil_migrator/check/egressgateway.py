"""egressgateway in the cluster: its kinds have the group, and some the names, of those of floating addresses here."""

from collections.abc import Iterator
from typing import Final

from coil_migrator.check.cluster import Cluster
from coil_migrator.check.finding import Finding, Severity

GROUP: Final = "egressgateway.spidernet.io"
_UNSERVED: Final = ("egresspolicies", "egressclusterpolicies", "egressclusterinfos", "egressclusterendpointslices")
_SHARED: Final = ("egressgateways", "egresstunnels", "egressendpointslices")


def check_egressgateway(cluster: Cluster) -> Iterator[Finding]:
    """Whether its kinds are there, and which of them nobody would serve."""
    unserved = [f"{plural}.{GROUP}" for plural in _UNSERVED if f"{plural}.{GROUP}" in cluster.definitions]
    if not unserved:
        return
    yield Finding(
        severity=Severity.MUST_MEND,
        subject="CustomResourceDefinitions " + ", ".join(unserved),
        message="kinds of egressgateway, which these programs do not serve",
        remedy="write its policies as EgressGatewayPolicy (docs/eip-gateway.md) before eip.enabled",
    )
    shared = [f"{plural}.{GROUP}" for plural in _SHARED if f"{plural}.{GROUP}" in cluster.definitions]
    if shared:
        yield Finding(
            severity=Severity.MUST_MEND,
            subject="CustomResourceDefinitions " + ", ".join(shared),
            message="the chart has definitions of these names with other fields",
            remedy="uninstall egressgateway, with its objects of these kinds, before you apply those of the chart",
        )
