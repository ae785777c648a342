"""The metadata service of the tests against the product's client: tokens, lag, faults, and what the strict EC2 has."""

from collections.abc import AsyncIterator, Iterator
from ipaddress import IPv4Network
from typing import Any

import aiohttp
import pytest

from coil.aws.metadata import HttpInstanceMetadata, MetadataError
from integration.aws.metadata_service import TTL_HEADER, MetadataService
from integration.aws.strict_ec2 import REGION, StrictEc2
from integration.aws.talk import PATIENCE

TYPE = "m5.large"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def strict() -> Iterator[StrictEc2]:
    with StrictEc2.start() as ec2:
        yield ec2


@pytest.fixture
def instance(strict: StrictEc2) -> str:
    return strict.launch(TYPE, strict.subnet("10.1.0.0/24"))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(strict: StrictEc2, instance: str, clock: Clock) -> Iterator[MetadataService]:
    with MetadataService(strict, instance=instance, clock=clock) as made:
        yield made


@pytest.fixture
async def client(service: MetadataService, clock: Clock) -> AsyncIterator[HttpInstanceMetadata]:
    async with HttpInstanceMetadata.connect(clock=clock, endpoint=service.endpoint, timeout=PATIENCE) as made:
        yield made


def assign(backend: Any, instance: str, address: str) -> None:
    """As EC2 does it when it is asked to."""
    [eni] = backend.get_instance(instance).nics.values()
    eni.private_ip_addresses = [*eni.private_ip_addresses, {"Primary": False, "PrivateIpAddress": address}]


async def test_what_ec2_has(strict: StrictEc2, instance: str, client: HttpInstanceMetadata) -> None:
    with strict.change() as backend:
        assign(backend, instance, "10.1.0.77")
        backend.associate_vpc_cidr_block(strict.vpc(), "100.64.0.0/16", False)
        [eni] = backend.get_instance(instance).nics.values()
        eni.ipv4_prefixes = [{"Ipv4Prefix": "10.1.0.32/28"}]
    identity = await client.identity()
    assert (identity.instance_id, identity.instance_type, identity.region) == (instance, TYPE, REGION)
    [found] = await client.interfaces()
    assert (found.interface, found.mac, found.device_number) == (eni.id, eni.mac_address, 0)
    assert (found.subnet, found.subnet_ipv4) == (eni.subnet.id, IPv4Network("10.1.0.0/24"))
    assert found.vpc_ipv4s == (IPv4Network("10.1.0.0/16"), IPv4Network("100.64.0.0/16"))
    assert [str(each) for each in found.local_ipv4s] == [eni.private_ip_address, "10.1.0.77"]
    assert found.ipv4_prefixes == (IPv4Network("10.1.0.32/28"),)
    assert found.groups == tuple(group.id for group in eni.group_set)
    assert (found.ipv6_prefixes, found.vpc_ipv6s) == ((), ())


async def test_without_a_token_there_is_no_answer(service: MetadataService, clock: Clock) -> None:
    document = f"{service.endpoint}/latest/dynamic/instance-identity/document"
    async with aiohttp.ClientSession() as session:

        async def status(token: str) -> int:
            async with session.get(document, headers={"X-aws-ec2-metadata-token": token}) as response:
                return response.status

        async with session.get(document) as response:
            assert response.status == 401
        for ttl in ("", "0", "21601"):
            async with session.put(f"{service.endpoint}/latest/api/token", headers={TTL_HEADER: ttl}) as response:
                assert response.status == 400
        async with session.put(f"{service.endpoint}/latest/api/token", headers={TTL_HEADER: "60"}) as response:
            token = await response.text()
        assert (await status("invented"), await status(token)) == (401, 200)
        clock.now += 60.0
        assert await status(token) == 401


async def test_the_client_survives_that_tokens_are_forgotten(
    service: MetadataService, client: HttpInstanceMetadata
) -> None:
    before = await client.identity()
    service.forget_tokens()
    assert await client.identity() == before


async def test_answers_are_as_old_as_the_lag(
    strict: StrictEc2, service: MetadataService, instance: str, client: HttpInstanceMetadata, clock: Clock
) -> None:
    service.lag = 30.0
    clock.now += 60.0
    with strict.change() as backend:
        assign(backend, instance, "10.1.0.77")
    clock.now += 29.0
    [found] = await client.interfaces()
    assert len(found.local_ipv4s) == 1
    clock.now += 1.0
    [found] = await client.interfaces()
    assert len(found.local_ipv4s) == 2


async def test_faults(service: MetadataService, client: HttpInstanceMetadata, clock: Clock) -> None:
    service.status = 503
    with pytest.raises(MetadataError, match="answers 503"):
        await client.interfaces()
    service.status = 0
    service.speaks.clear()
    async with HttpInstanceMetadata.connect(clock=clock, endpoint=service.endpoint, timeout=0.2) as hasty:
        with pytest.raises(MetadataError, match="does not answer"):
            await hasty.interfaces()
    service.speaks.set()
    assert await client.interfaces()


async def test_a_terminated_instance_has_no_metadata(
    strict: StrictEc2, instance: str, client: HttpInstanceMetadata
) -> None:
    strict.terminate(instance)
    with pytest.raises(MetadataError, match="has no dynamic"):
        await client.identity()
