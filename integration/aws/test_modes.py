"""A node with everything that is off by default: prefixes, no translation, and metadata for its pods."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from integration.aws.node import EniPod
from integration.aws.talk import ask, is_silent
from integration.aws.vpc import METADATA
from integration.aws.vpc_plan import INTERNET, OUTSIDE
from integration.aws.world import FLAGS, EniWorld
from integration.cluster.control_plane import ControlPlane
from integration.egress.capture import Capture

pytestmark = pytest.mark.apiserver

MODES = ("--enable-prefix-delegation=true", "--external-snat=true", "--allow-pod-metadata-access=true")
PREFIX_SIZE = 16


@dataclass(frozen=True, slots=True)
class Populated:
    """The world, with more pods on node-0 than a prefix has addresses."""

    world: EniWorld
    pods: list[EniPod]


@pytest.fixture(scope="module")
def populated(plane: ControlPlane) -> Iterator[Populated]:
    with EniWorld.up(plane) as world:
        node = world.nodes[0]
        node.start_coild(*FLAGS, *MODES, "--warm-prefix-target=1")
        yield Populated(world, [node.add_pod() for _ in range(PREFIX_SIZE + 1)])
        assert world.spoofed() == []


def test_pods_have_addresses_of_prefixes(populated: Populated) -> None:
    prefixes = {prefix for each in populated.world.nodes[0].instance.interfaces for prefix in each.prefixes}
    assert all(prefix.prefixlen == 28 for prefix in prefixes)
    used = {next(prefix for prefix in prefixes if pod.address in prefix) for pod in populated.pods}
    assert len(used) == 2, "the first one was filled before the next one was begun"
    endpoint = populated.world.endpoint
    for pod in populated.pods:
        assert ask(pod.host, endpoint.host, endpoint.primary) == str(pod.address)
        assert ask(endpoint.host, pod.host, pod.address) == str(endpoint.primary)


def test_what_leaves_the_vpc_keeps_its_source(populated: Populated) -> None:
    """There is no NAT gateway here, so nobody in the internet hears of it; on-premises does."""
    world, pod = populated.world, populated.pods[0]
    with Capture(pod.node.namespaces.net, pod.link) as seen:
        assert is_silent(pod.host, world.vpc.internet, OUTSIDE[INTERNET])
        packet = seen.wait_for(lambda packet: packet.destination == str(OUTSIDE[INTERNET]), what="the packet")
    assert packet.source == str(pod.address)
    assert ask(pod.host, world.vpc.on_premises, "192.168.50.10") == str(pod.address)


def test_metadata_is_for_pods_if_that_is_wanted(populated: Populated) -> None:
    pod = populated.pods[0]
    url = f"http://{METADATA}/latest"
    curl = ("curl", "--silent", "--noproxy", "*")
    token = pod.sandbox.kernel.run(
        *(*curl, "-X", "PUT", f"{url}/api/token", "-H", "X-aws-ec2-metadata-token-ttl-seconds: 60")
    )
    said = pod.sandbox.kernel.run(*curl, f"{url}/meta-data/instance-id", "-H", f"X-aws-ec2-metadata-token: {token}")
    assert said == pod.node.instance.id
