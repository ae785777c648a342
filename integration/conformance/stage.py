"""A cluster as Kubernetes' tests want it: two nodes with Coil from the chart, CoreDNS, and the images of their pods."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration.cluster.cluster import Cluster
from integration.cluster.command_line import Version
from integration.cluster.control_plane import ControlPlane
from integration.cluster.family import ClusterFamilies
from integration.cluster.programs import conformance_version
from integration.conformance.coredns import deploy_coredns
from integration.demo.workload import pool_document
from integration.deployment import UnsupportedVersionError
from integration.helm.release import Release, import_image

_SUBNETS = {4: ("ipv4", "10.100.0.0/16"), 6: ("ipv6", "fd10:100::/112")}


def check_version(plane: ControlPlane) -> None:
    """Raises UnsupportedVersionError unless the tests are those of this Kubernetes."""
    version = Version.parse(conformance_version().rpartition(".")[0])
    if plane.version != version:
        raise UnsupportedVersionError(f"the tests are those of Kubernetes {version}, and this is {plane.version}")


@contextmanager
def conformance_cluster(families: ClusterFamilies, *, coil: Path, images: Path) -> Iterator[Cluster]:
    """Up when all is Ready; gone with the context. `coil` and `images` are archives.

    Raises what `Cluster.up` raises, UnsupportedVersionError, HelmError or KubectlError.
    """
    with Cluster.up(nodes=2, families=families) as cluster:
        check_version(cluster.plane)
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
