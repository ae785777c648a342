"""Two nodes with the former release on them, and this checkout's, to which it is upgraded."""

from collections.abc import Iterator

import pytest

from integration.cluster.cluster import Cluster
from integration.helm.release import Release
from integration.nodes.coil_cluster import CoilCluster
from integration.nodes.conftest import VALUES
from integration.upgrade.revision import FORMER, Revision, RevisionError, check_revision
from integration.upgrade.scene import Scene
from integration.upgrade.story import Change, Story, install_former

PATIENCE = {
    # No address that is cooling down at the beginning is free before the end.
    "coild.cooling": "30m",
    # Floating addresses move when programs are replaced, and not because a busy machine has renewed a Lease late.
    "eip.lease": "20s",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--from", dest="former", default=FORMER, help="the git revision to upgrade from")


def pytest_configure(config: pytest.Config) -> None:
    try:
        check_revision(config.getoption("former", FORMER))
    except RevisionError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture(scope="session")
def revision(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Revision:
    """The former release's files."""
    return Revision.check_out(request.config.getoption("former"), tmp_path_factory.mktemp("former"))


@pytest.fixture(scope="session")
def story(cluster: Cluster, revision: Revision) -> Iterator[Story]:
    """At its beginning: the former release is installed, pods run and talk."""
    name, archive = revision.build_image()
    values = {**VALUES, **PATIENCE}
    coil = CoilCluster(cluster, Release(cluster.plane, values, profiles=["eip-gateway"]))
    with Scene.play(install_former(coil, revision, archive, name)) as scene:
        yield Story(scene, coil.release)


@pytest.fixture(scope="session", params=["upgrade", "rollback"])
def change(request: pytest.FixtureRequest, story: Story) -> Change:
    """A chapter that has been played."""
    return story.chapter(request.param)
