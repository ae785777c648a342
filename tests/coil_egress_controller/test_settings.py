"""Flags, the image of router pods, and the version of disruption budgets."""

import pytest
import structlog

from coil.crd.meta import ObjectMeta
from coil.kube.client import KubeClient
from coil.kube.errors import ApiError, NotFoundError, UnavailableError
from coil.manager.claim import LeaderTiming
from coil.runtime.flag import Endpoint, parse_settings
from coil_egress_controller.egress.discovery import (
    ContainerImage,
    ContainerList,
    ImageUnknownError,
    OwnPod,
    UnservedPolicyError,
    choose_version,
    find_own_image,
    select_image,
    select_version,
    watch_version,
)
from coil_egress_controller.settings import Settings
from tests.coil.kube.memory_api import MemoryApi, MemoryClient


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
        await find_own_image(KubeClient.connect(), namespace="", name="pod", container="main")


class Versions(MemoryClient):
    """Answers one after the other; the last one again and again."""

    def __init__(self, *answers: tuple[str, ...] | ApiError) -> None:
        super().__init__(MemoryApi())
        self._answers = list(answers)
        self.slept: list[float] = []

    async def served_versions(self, group: str) -> tuple[str, ...]:
        assert group == "policy"
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, ApiError):
            raise answer
        return answer

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.mark.parametrize(
    ("served", "chosen"), [(("v1beta1",), "v1beta1"), (("v1", "v1beta1"), "v1"), (("v1beta1", "v1"), "v1")]
)
def test_the_better_version_is_chosen(served: tuple[str, ...], chosen: str) -> None:
    assert select_version(served) == chosen


@pytest.mark.parametrize("served", [(), ("v2",)])
def test_a_server_without_a_known_version(served: tuple[str, ...]) -> None:
    with pytest.raises(UnservedPolicyError, match="one of"):
        select_version(served)


async def test_an_absent_server_is_waited_for() -> None:
    versions = Versions(UnavailableError("down"), UnavailableError("down"), ("v1",))
    log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])
    assert await choose_version(versions, log=log, random=lambda: 0.0, sleep=versions.sleep) == "v1"
    assert versions.slept == [0.5, 1.0]


async def test_a_version_that_is_served_no_more_ends_the_process() -> None:
    versions = Versions(("v1", "v1beta1"), NotFoundError("no group", status=404), ("v1",))
    with pytest.raises(UnservedPolicyError, match="v1beta1"):
        await watch_version(versions, "v1beta1", sleep=versions.sleep)
    assert len(versions.slept) == 3
