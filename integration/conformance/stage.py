"""A cluster as Kubernetes' tests want it: two nodes with Coil from the chart, CoreDNS, and the images of their pods."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration.cluster.cluster import Cluster
from integration.cluster.family import ClusterFamilies
from integration.conformance.coredns import deploy_coredns
from integration.demo.workload import pool_document
from integration.helm.release import Release, import_image

_SUBNETS = {4: ("ipv4", "10.100.0.0/16"), 6: ("ipv6", "fd10:100::/112")}


@contextmanager
def conformance_cluster(families: ClusterFamilies, *, coil: Path, images: Path) -> Iterator[Cluster]:
    """Up when all is Ready; gone with the context. `coil` and `images` are archives.

    Raises what `Cluster.up` raises, HelmError or KubectlError.
    """
    with Cluster.up(nodes=2, families=families) as cluster:
        for archive in (coil, images):
            import_image(cluster, archive)
        release = Release(cluster.plane, {})
        release.install()
        subnet = dict(_SUBNETS[version] for version in families.value)
        release.apply(pool_document("default", {"blockSizeBits": 5, "subnets": [subnet]}))
        release.wait_rolled_out()
        cluster.wait_ready()
        deploy_coredns(cluster.plane, families)
        yield cluster
