"""Flags, and the image of router pods."""

from typing import Any

import pytest
import structlog

from coil.crd.meta import ObjectMeta
from coil.crd.resource import Resource
from coil.kube.client import KubeClient
from coil.kube.errors import UnavailableError
from coil.manager.claim import LeaderTiming
from coil.runtime.flag import Endpoint, parse_settings
from coil_egress_controller.egress.own_image import (
    OWN_PODS,
    ContainerImage,
    ContainerList,
    ImageUnknownError,
    OwnPod,
    find_own_image,
    select_image,
)
from coil_egress_controller.settings import Settings
from tests.coil.kube.memory_api import MemoryApi, MemoryClient

LOG = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])


def parse(*arguments: str, **environment: str) -> Settings:
    return parse_settings(Settings, arguments, environment, program="coil-egress-controller", about="")


def test_defaults() -> None:
    settings = parse()
    assert settings.metrics_addr == Endpoint("127.0.0.1", 9396)
    assert settings.health_addr == Endpoint("127.0.0.1", 9397)
    assert settings.webhook_addr == Endpoint("", 9444)
    assert (settings.egress_port, settings.egress_image, settings.resync_interval) == (5555, "", 3600)
    assert (settings.lease_duration, settings.lease_namespace) == (LeaderTiming(), "kube-system")


def test_settings_of_floating_addresses() -> None:
    settings = parse()
    assert settings.enable_eip
    assert (str(settings.tunnel_ipv4_subnet), str(settings.tunnel_ipv6_subnet)) == ("172.31.0.0/16", "fd11::/112")
    assert settings.slice_endpoints == 100
    assert settings.eip_lease_namespace == "coil-eip-leases"
    assert parse("--eip-lease-namespace=leases").eip_lease_namespace == "leases"
    assert not parse("--enable-eip=false").enable_eip
    assert parse("--tunnel-ipv4-subnet=10.1.0.0/24").tunnel_ipv4_subnet.num_addresses == 256


@pytest.mark.parametrize(
    "flag",
    [
        *("--tunnel-ipv4-subnet=fd11::/112", "--tunnel-ipv4-subnet=10.1.0.1/24", "--tunnel-ipv4-subnet=10.0.0.0/31"),
        *("--tunnel-ipv6-subnet=10.0.0.0/8", "--tunnel-ipv6-subnet=fd11::/127", "--slice-endpoints=0"),
        *("--eip-lease-namespace=", "--eip-lease-namespace=Leases"),
    ],
)
def test_settings_of_floating_addresses_that_cannot_be(flag: str) -> None:
    with pytest.raises(SystemExit):
        parse(flag)


def test_given_values() -> None:
    assert parse("--egress-port=1234").egress_port == 1234
    assert parse("--egress-image=a:b").egress_image == "a:b"
    settings = parse(COIL_POD_NAMESPACE="kube-system", COIL_POD_NAME="pod")
    assert (settings.pod_namespace, settings.pod_name) == ("kube-system", "pod")


def pod(**images: str) -> OwnPod:
    containers = tuple(ContainerImage(name=name, image=image) for name, image in images.items())
    return OwnPod(metadata=ObjectMeta(name="pod"), spec=ContainerList(containers=containers))


def test_the_image_is_that_of_the_controllers_container() -> None:
    assert select_image(pod(main="a", sidecar="b"), "main") == "a"
    assert select_image(pod(other="a"), "main") == "a"
    for unclear in (pod(), pod(one="a", two="b")):
        with pytest.raises(ImageUnknownError, match="--egress-image"):
            select_image(unclear, "main")


async def test_without_a_name_of_its_own_pod_the_image_must_be_set() -> None:
    with pytest.raises(ImageUnknownError, match="COIL_POD_NAME"):
        await find_own_image(
            KubeClient.connect(), namespace="", name="pod", container="main", log=LOG, random=lambda: 0.0
        )


class Starting(MemoryClient):
    """Fails twice, then answers."""

    def __init__(self, answer: OwnPod) -> None:
        super().__init__(MemoryApi())
        self._answer = answer
        self.slept: list[float] = []

    async def get(self, resource: Resource[Any], name: str, *, namespace: str = "") -> Any:
        assert (resource, name, namespace) == (OWN_PODS, "pod", "kube-system")
        if len(self.slept) < 2:
            raise UnavailableError("down")
        return self._answer

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def test_an_absent_server_is_waited_for() -> None:
    client = Starting(pod(main="a"))
    image = await find_own_image(
        client,
        namespace="kube-system",
        name="pod",
        container="main",
        log=LOG,
        random=lambda: 0.0,
        sleep=client.sleep,
    )
    assert image == "a"
    assert client.slept == [0.5, 1.0]
