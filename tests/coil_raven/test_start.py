"""What coil-raven looks at before it makes anything, the router that it makes, and its settings."""

import asyncio
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from pathlib import Path

import pytest
import structlog

from coil.kernel.family import IPNetwork
from coil.neutron.identity import Identity, Kind, cluster_tag
from coil.neutron.provider import PROVIDERS, Provider
from coil.neutron.resource import NetworkId, ProjectId
from coil.neutron.supernet import Supernet
from coil.neutron.vip_range import VipRange
from coil.openstack.client import OpenStackClient, connect
from coil.openstack.error import DeniedError, UnauthenticatedError, UnavailableError
from coil.openstack.neutron import NeutronApi
from coil.runtime.flag import parse_settings
from coil_raven.cluster_router import ClusterRouter
from coil_raven.main import Raven
from coil_raven.settings import Settings, parse_service_cidrs, parse_supernets
from coil_raven.start_checks import (
    REQUIRED_EXTENSIONS,
    Finding,
    StartError,
    Surroundings,
    check_services,
    check_start,
)
from coil_raven.vip_subnets import vip_subnet_name
from tests.coil.openstack.memory_neutron import MemoryNeutron
from tests.coil.openstack.memory_octavia import MemoryOctavia
from tests.coil_raven.life import CLUSTER, PROJECT

SUPERNETS = (Supernet(ip_network("10.0.0.0/8"), 16),)


@pytest.fixture
def neutron() -> MemoryNeutron:
    return MemoryNeutron()


async def check(neutron: MemoryNeutron, *, public: str = "", router: str = "", pools: bool = False) -> Surroundings:
    return await check_start(
        neutron, cluster=CLUSTER, public_network=public, router=router, supernets=SUPERNETS, pools=pools
    )


async def found(
    neutron: MemoryNeutron, *, public: str = "", router: str = "", pools: bool = False
) -> tuple[Finding, str]:
    with pytest.raises(StartError) as raised:
        await check(neutron, public=public, router=router, pools=pools)
    assert neutron.writes() == []
    return raised.value.finding, str(raised.value)


async def test_nothing_has_to_be_there(neutron: MemoryNeutron) -> None:
    assert await check(neutron) == Surroundings(public=None, router=None)


@pytest.mark.parametrize("error", [UnauthenticatedError, DeniedError])
async def test_credentials_that_are_not_accepted(
    neutron: MemoryNeutron, error: type[UnauthenticatedError] | type[DeniedError]
) -> None:
    neutron.faults.refusals["list extensions"] = [error("list extensions", "401", "the password has expired")]
    finding, message = await found(neutron)
    assert (finding, int(finding)) == (Finding.CREDENTIALS, 3)
    assert "the password has expired" in message


async def test_no_answer_is_no_finding(neutron: MemoryNeutron) -> None:
    neutron.faults.refusals["list extensions"] = [UnavailableError("list extensions", "503", "away")]
    with pytest.raises(UnavailableError):
        await check(neutron)


async def test_extensions_that_are_missing(neutron: MemoryNeutron, monkeypatch: pytest.MonkeyPatch) -> None:
    async def extensions() -> frozenset[str]:
        return REQUIRED_EXTENSIONS - {"binding", "router"}

    monkeypatch.setattr(neutron, "extensions", extensions)
    assert await found(neutron) == (Finding.EXTENSIONS, "Neutron lacks the API extensions binding, router")


async def test_an_extension_that_only_pools_need(neutron: MemoryNeutron, monkeypatch: pytest.MonkeyPatch) -> None:
    async def extensions() -> frozenset[str]:
        return REQUIRED_EXTENSIONS | {"standard-attr-revisions"}

    monkeypatch.setattr(neutron, "extensions", extensions)
    assert await check(neutron) == Surroundings(public=None, router=None)
    sentence = "Neutron lacks the API extensions revision-if-match"
    assert await found(neutron, pools=True) == (Finding.EXTENSIONS, sentence)


async def test_the_public_network_is_there_once_and_external(neutron: MemoryNeutron) -> None:
    await neutron.create_network(name="public", description="", project=PROJECT)
    neutron.calls.clear()
    finding, message = await found(neutron, public="public")
    assert (finding, int(finding)) == (Finding.PUBLIC_NETWORK, 5)
    assert "no external network with the name 'public'" in message
    public = neutron.add_external("public")
    assert (await check(neutron, public="public")).public == public.id
    neutron.add_external("public")
    assert "2 external networks" in (await found(neutron, public="public"))[1]


async def test_the_router_is_there_once(neutron: MemoryNeutron) -> None:
    finding, message = await found(neutron, router="main")
    assert (finding, int(finding)) == (Finding.ROUTER, 6)
    assert "no router with the name 'main'" in message
    router = await neutron.create_router(name="main", description="", project=PROJECT, external=None)
    assert (await check(neutron, router="main")).router == router


@pytest.mark.parametrize(("cidr", "free"), [("10.200.0.0/24", False), ("172.16.0.0/24", True), ("fd00::/64", True)])
async def test_the_router_connects_nothing_else_of_the_supernet(neutron: MemoryNeutron, cidr: str, free: bool) -> None:
    router = await neutron.create_router(name="main", description="", project=PROJECT, external=None)
    await connect_subnet(neutron, router.id, "somebodys", ip_network(cidr))
    own = Identity(CLUSTER, Kind.SUBNET_IPV4, "uid-1").name
    await connect_subnet(neutron, router.id, own, ip_network("10.7.0.0/16"))
    elsewhere = await neutron.create_router(name="another", description="", project=PROJECT, external=None)
    await connect_subnet(neutron, elsewhere.id, "elsewhere", ip_network("10.201.0.0/24"))
    neutron.calls.clear()
    if free:
        assert (await check(neutron, router="main")).router == router
    else:
        finding, message = await found(neutron, router="main")
        assert (finding, int(finding)) == (Finding.SUPERNET, 8)
        assert "10.0.0.0/8 overlaps 10.200.0.0/24" in message


async def connect_subnet(neutron: MemoryNeutron, router: str, name: str, cidr: IPNetwork) -> None:
    network = await neutron.create_network(name=name, description="", project=PROJECT)
    subnet = await neutron.create_subnet(
        name=name, description="", project=PROJECT, network=network.id, cidr=cidr, gateway=cidr[1]
    )
    (found,) = [each for each in await neutron.routers() if each.id == router]
    await neutron.add_router_interface(found.id, subnet.id)


def a_router(neutron: MemoryNeutron, public: NetworkId | None) -> ClusterRouter:
    log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])
    return ClusterRouter(neutron, cluster=CLUSTER, given=None, public=public, project=ProjectId(""), log=log)


async def test_a_router_is_made_once_with_its_gateway_and_tag(neutron: MemoryNeutron) -> None:
    public = neutron.add_external("public")
    first = await a_router(neutron, None).get()
    (router,) = await neutron.routers()
    assert (router.id, router.external_gateway_info, router.tags) == (first, None, (cluster_tag(CLUSTER),))
    assert await a_router(neutron, public.id).get() == first
    (router,) = await neutron.routers()
    assert router.external_gateway_info is not None
    assert router.external_gateway_info.network_id == public.id
    neutron.calls.clear()
    assert await a_router(neutron, public.id).get() == first
    assert neutron.writes() == []


def test_supernets() -> None:
    assert parse_supernets("10.0.0.0/8") == SUPERNETS
    assert parse_supernets("10.0.0.0/8/20, fd00:1::/48") == (
        Supernet(ip_network("10.0.0.0/8"), 20),
        Supernet(ip_network("fd00:1::/48"), 64),
    )
    lengths = [parse_supernets(f"10.0.0.0/{length}")[0].length for length in (8, 15, 16, 20, 24)]
    assert lengths == [16, 16, 24, 28, 28]
    for text in ("", "10.0.0.0/8,10.1.0.0/16", "10.0.0.1/8", "10.0.0.0/29", "10.0.0.0/8/x", "10.0.0.0/8/31"):
        with pytest.raises(ValueError, match=r"."):
            parse_supernets(text)


def test_service_networks_are_given_with_or_without_their_subnets() -> None:
    assert parse_service_cidrs("") == ()
    assert parse_service_cidrs("10.96.0.0/12, fd00:96::/112=fd00:96::/96") == (
        VipRange(ip_network("10.96.0.0/12"), ip_network("10.96.0.0/11")),
        VipRange(ip_network("fd00:96::/112"), ip_network("fd00:96::/96")),
    )
    for text in ("10.96.0.0/12=10.96.0.0/12", "10.96.0.0/12=10.0.0.0/16", "10.96.0.0/12,10.1.0.0/16", "10.96.0.1/12"):
        with pytest.raises(ValueError, match=r"."):
            parse_service_cidrs(text)


async def check_load_balancing(
    neutron: MemoryNeutron, *, provider: Provider = PROVIDERS["amphora"], cidrs: str = "10.96.0.0/16"
) -> None:
    await check_services(
        neutron,
        MemoryOctavia(),
        cluster=CLUSTER,
        ranges=parse_service_cidrs(cidrs),
        provider=provider,
        supernets=parse_supernets("10.0.0.0/9"),
    )


async def test_load_balancers_need_their_provider(neutron: MemoryNeutron) -> None:
    await check_load_balancing(neutron, cidrs="10.196.0.0/16")
    with pytest.raises(StartError, match="lacks the provider 'other'") as raised:
        await check_load_balancing(neutron, provider=replace(PROVIDERS["ovn"], name="other"), cidrs="10.196.0.0/16")
    assert raised.value.finding == Finding.EXTENSIONS


async def test_cluster_ips_are_no_addresses_of_pods(neutron: MemoryNeutron) -> None:
    with pytest.raises(StartError, match=r"10\.0\.0\.0/9 overlaps 10\.96\.0\.0/15") as raised:
        await check_load_balancing(neutron)
    assert raised.value.finding == Finding.SUPERNET


async def test_a_subnet_of_cluster_ips_that_is_too_small_is_refused(neutron: MemoryNeutron) -> None:
    network = await neutron.create_network(name="vips", description="", project=PROJECT)
    await neutron.create_subnet(
        name=vip_subnet_name(CLUSTER, 4),
        description="",
        project=PROJECT,
        network=network.id,
        cidr=ip_network("10.196.0.0/20"),
        gateway=None,
    )
    with pytest.raises(StartError, match="does not contain the Service network") as raised:
        await check_load_balancing(neutron, cidrs="10.196.0.0/16")
    assert raised.value.finding == Finding.VIP_SUBNET


def test_flags_that_cannot_be_read_end_it_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["--cluster-name=Blue"], ["--port-type=../sh"], ["--supernets=10.0.0.0"], ["--provider=f5"]):
        with pytest.raises(SystemExit) as ended:
            parse_settings(Settings, flags, {}, program="coil-raven", about="")
        assert ended.value.code == 2
        assert flags[0].partition("=")[2] in capsys.readouterr().err


async def test_a_finding_is_the_exit_code(neutron: MemoryNeutron) -> None:
    settings = parse_settings(Settings, ["--router=main"], {}, program="coil-raven", about="")
    raven = Raven(settings, {})
    process = type("Process", (), {"log": structlog.wrap_logger(structlog.ReturnLogger(), processors=[])})()
    with pytest.raises(StartError):
        await raven._check(process, neutron, MemoryOctavia(), CLUSTER)
    assert raven.exit_code == 6


@pytest.mark.parametrize("text", ["clouds: {blue: {}}", "clouds: {", "- a list", ""])
def test_a_clouds_file_that_cannot_be_used_is_told(tmp_path: Path, text: str) -> None:
    """With openstacksdk's threads, and so under the real clock."""
    (tmp_path / "clouds.yaml").write_text(text)
    flags = [f"--clouds-file={tmp_path / 'clouds.yaml'}", "--cloud=green"]
    settings = parse_settings(Settings, flags, {}, program="coil-raven", about="")
    with (
        OpenStackClient(partial(connect, settings.clouds_file, settings.cloud, app_name="test")) as client,
        pytest.raises(StartError, match=r"green was not found|not a valid mapping") as raised,
    ):
        asyncio.run(
            check_start(
                NeutronApi(client), cluster=CLUSTER, public_network="", router="", supernets=SUPERNETS, pools=False
            )
        )
    assert raised.value.finding == Finding.CREDENTIALS


async def test_the_public_network_may_be_named_by_its_subnet(neutron: MemoryNeutron) -> None:
    public = neutron.add_external("public")
    neutron.add_external("another")
    finding, message = await found(neutron, public="172.16.0.0/16")
    assert (finding, int(finding)) == (Finding.PUBLIC_NETWORK, 5)
    assert "no external network with a subnet 172.16.0.0/16" in message
    await neutron.create_subnet(
        name="", description="", project=PROJECT, network=public.id, cidr=ip_network("172.16.0.0/16"), gateway=None
    )
    assert (await check(neutron, public="172.16.0.0/16")).public == public.id
