"""Real components for integration tests: started on first use, gone with the session, or the test, however it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]

from integration.cluster.cluster import Cluster
from integration.cluster.control_plane import ControlPlane
from integration.deployment import UnsupportedVersionError
from integration.examples import load_profile
from integration.netns.netns import Netns, create_netns, delete_netns
from integration.scheduling import SchedulingByGroup, make_scheduler
from integration.uplink_watch import UplinkWatch, describe_leaks
from integration.vm.run import INSIDE_VARIABLE

load_profile()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SchedulingByGroup | None:
    return make_scheduler(config, log)


@contextmanager
def _skipped_when_unsupported() -> Iterator[None]:
    """That Coil does not support a version is no failure of Coil's; the reason is told."""
    try:
        yield
    except UnsupportedVersionError as error:
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    # Not of the fixture: what one has raised is raised again, without a hook, for each later test that wants it.
    with _skipped_when_unsupported():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    with _skipped_when_unsupported():
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def _nothing_leaves_the_machine() -> Iterator[None]:
    """Whatever is tested: no packet of a cluster goes out by a default route. It fails the session's last test."""
    if os.geteuid() != 0 or INSIDE_VARIABLE in os.environ:
        # A guest's default route leads to the machine that it runs on, and that one is watched from there.
        yield
        return
    with UplinkWatch() as watch:
        yield
    if leaks := watch.leaks():
        pytest.fail(describe_leaks(leaks))


@pytest.fixture(scope="session")
def apiserver() -> Iterator[ControlPlane]:
    """etcd and kube-apiserver, shared by the session: use names of your own in it and delete what you make."""
    with ControlPlane.start() as plane:
        yield plane


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes without a CNI plugin, shared by the session; to install one is the tests' part."""
    with Cluster.up(nodes=2) as running:
        yield running


@pytest.fixture
def new_netns() -> Iterator[Callable[[], Netns]]:
    """Makes namespaces that are gone after the test."""
    assert os.geteuid() == 0, "tests marked `kernel` make network namespaces, which takes root"
    made: list[Netns] = []

    def new() -> Netns:
        [netns] = create_netns(1)
        made.append(netns)
        return netns

    yield new
    delete_netns(made)
