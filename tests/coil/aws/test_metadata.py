"""What the client makes of a metadata service's answers, and of what are none. The service is a tree of texts."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Network

import pytest
from aiohttp import web

from coil.aws import metadata
from coil.aws.ec2 import InstanceId
from coil.aws.metadata import (
    END_NOTICES,
    MAX_ANSWER,
    TOKEN_SECONDS,
    HttpInstanceMetadata,
    InstanceIdentity,
    MetadataError,
)
from coil.kernel.link import MacAddress

MAC = "02:a1:b2:c3:d4:e5"
SECOND_MAC = "02:a1:b2:c3:d4:00"
MACS = "meta-data/network/interfaces/macs/"
IDENTITY = "dynamic/instance-identity/document"


def interface(device: int) -> dict[str, str]:
    """The leaves of one interface, as AWS has them (EC2 User Guide, "Instance metadata categories")."""
    return {
        "device-number": str(device),
        "interface-id": f"eni-0{device}",
        "local-ipv4s": f"10.1.0.1{device}\n10.1.0.2{device}",
        "mac": MAC,
        "security-group-ids": "sg-1\nsg-2",
        "subnet-id": "subnet-1",
        "subnet-ipv4-cidr-block": "10.1.0.0/24",
        "vpc-id": "vpc-1",
        "vpc-ipv4-cidr-blocks": "10.1.0.0/16\n100.64.0.0/16",
        "vpc-ipv6-cidr-blocks": "2001:db8::/56",
        "ipv4-prefix": "10.1.0.32/28\n10.1.0.48/28",
        "ipv6-prefix": "2001:db8:0:1:2::/80",
    }


class Service:
    """Serves `leaves` to whoever has a token that is still good."""

    def __init__(self) -> None:
        document = {
            "instanceId": "i-1",
            "instanceType": "m5.large",
            "region": "eu-central-1",
            "availabilityZone": "eu-central-1a",
            "accountId": "123456789012",
            "privateIp": "10.1.0.4",
        }
        self.leaves = {IDENTITY: json.dumps(document), "meta-data/mac": MAC, MACS: f"{MAC}/"}
        self.leaves |= {f"{MACS}{MAC}/{name}": text for name, text in interface(0).items()}
        self.statuses: dict[str, int] = {}
        """By path, in place of an answer."""
        self.speaks = asyncio.Event()
        self.speaks.set()
        self.tokens: list[str] = []
        self.asked = 0
        self.url = ""

    def forget_tokens(self) -> None:
        self.tokens = [*self.tokens, "newer than all that were given"]

    async def answer(self, request: web.Request) -> web.Response:
        path = request.path.removeprefix("/latest/")
        await self.speaks.wait()
        if status := self.statuses.get(path):
            return web.Response(status=status, headers={"Location": f"{self.url}/latest/{IDENTITY}"})
        if (request.method, path) == ("PUT", "api/token"):
            assert request.headers["X-aws-ec2-metadata-token-ttl-seconds"] == str(TOKEN_SECONDS)
            self.tokens.append(f"token-{len(self.tokens)}")
            return web.Response(text=self.tokens[-1])
        self.asked += 1
        if request.headers.get("X-aws-ec2-metadata-token") not in self.tokens[-1:]:
            return web.Response(status=401)
        text = self.leaves.get(path)
        return web.Response(status=404) if text is None else web.Response(text=text)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    made.speaks.set()
    await runner.cleanup()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def client(service: Service, clock: Callable[[], float]) -> AsyncIterator[HttpInstanceMetadata]:
    async with HttpInstanceMetadata.connect(clock=clock, endpoint=f"{service.url}/") as made:
        yield made


class TestAnswers:
    async def test_identity(self, client: HttpInstanceMetadata) -> None:
        assert await client.identity() == InstanceIdentity(
            instance_id=InstanceId("i-1"),
            instance_type="m5.large",
            region="eu-central-1",
            zone="eu-central-1a",
            account="123456789012",
            mac=MacAddress(MAC),
        )

    @pytest.mark.parametrize("mac", [None, "", "eth0"])
    async def test_an_identity_without_the_primary_interface_is_none(
        self, service: Service, client: HttpInstanceMetadata, mac: str | None
    ) -> None:
        """Or a guess would have to be made of which one it is."""
        if mac is None:
            del service.leaves["meta-data/mac"]
        else:
            service.leaves["meta-data/mac"] = mac
        with pytest.raises(MetadataError, match=r"mac|hardware"):
            await client.identity()

    @pytest.mark.parametrize("path", END_NOTICES)
    async def test_a_notice_of_the_instances_end(
        self, service: Service, client: HttpInstanceMetadata, path: str
    ) -> None:
        assert await client.end_notice() is None
        service.leaves[path] = '{"action": "terminate",\n "time": "2030-01-01T12:00:00Z"}'
        notice = await client.end_notice()
        assert notice == f'{path.removeprefix("meta-data/")} {{"action": "terminate", "time": "2030-01-01T12:00:00Z"}}'
        service.leaves[path] = "x" * 1000
        assert len(await client.end_notice() or "") < 300
        service.statuses[path] = 503
        with pytest.raises(MetadataError):
            await client.end_notice()

    async def test_interfaces(self, service: Service, client: HttpInstanceMetadata) -> None:
        service.leaves[MACS] = f"{MAC}/\n{SECOND_MAC.upper()}/\n"
        service.leaves |= {f"{MACS}{SECOND_MAC}/{name}": text for name, text in interface(1).items()}
        service.leaves[f"{MACS}{MAC}/device-number"] = "2"
        second, first = await client.interfaces()
        assert (first.mac, first.interface, first.device_number) == (MAC, "eni-00", 2)
        assert (second.mac, second.interface, second.device_number) == (SECOND_MAC, "eni-01", 1)
        assert (first.subnet, first.subnet_ipv4, first.vpc) == ("subnet-1", IPv4Network("10.1.0.0/24"), "vpc-1")
        assert first.vpc_ipv4s == (IPv4Network("10.1.0.0/16"), IPv4Network("100.64.0.0/16"))
        assert first.vpc_ipv6s == (IPv6Network("2001:db8::/56"),)
        assert first.local_ipv4s == (IPv4Address("10.1.0.10"), IPv4Address("10.1.0.20"))
        assert first.ipv4_prefixes == (IPv4Network("10.1.0.32/28"), IPv4Network("10.1.0.48/28"))
        assert first.ipv6_prefixes == (IPv6Network("2001:db8:0:1:2::/80"),)
        assert first.groups == ("sg-1", "sg-2")

    async def test_an_optional_leaf_that_is_not_there_is_absent(
        self, service: Service, client: HttpInstanceMetadata
    ) -> None:
        for name in ("ipv4-prefix", "ipv6-prefix", "vpc-ipv6-cidr-blocks", "subnet-ipv4-cidr-block"):
            del service.leaves[f"{MACS}{MAC}/{name}"]
        [found] = await client.interfaces()
        assert (found.ipv4_prefixes, found.ipv6_prefixes, found.vpc_ipv6s) == ((), (), ())
        assert found.subnet_ipv4 is None
        assert found.vpc_ipv4s, "the others are there"

    @pytest.mark.parametrize(
        ("card", "missing"),
        [("0", {"local-ipv4s"}), ("0", {"local-ipv4s", "subnet-id", "vpc-id"}), ("1", set()), ("1", {"device-number"})],
    )
    async def test_an_interface_for_efa_is_left_out_whatever_it_lacks(
        self, service: Service, client: HttpInstanceMetadata, card: str, missing: set[str]
    ) -> None:
        """Its number may be that of another one, on another card."""
        service.leaves[MACS] = f"{SECOND_MAC}/\n{MAC}/"
        leaves = {name: text for name, text in interface(0).items() if name not in missing} | {"network-card": card}
        service.leaves |= {f"{MACS}{SECOND_MAC}/{name}": text for name, text in leaves.items()}
        service.leaves[f"{MACS}{MAC}/network-card"] = "0"
        assert [each.mac for each in await client.interfaces()] == [MAC]


class TestTokens:
    async def test_one_token_serves_until_shortly_before_its_end(
        self, service: Service, client: HttpInstanceMetadata, clock: Clock
    ) -> None:
        await client.identity()
        clock.now += TOKEN_SECONDS / 2
        await client.interfaces()
        assert len(service.tokens) == 1
        clock.now += TOKEN_SECONDS / 2 - 1
        before = service.asked
        await client.identity()
        assert (len(service.tokens), service.asked) == (2, before + 2), "a new one, before the old one is refused"

    async def test_a_token_that_the_service_has_forgotten_is_replaced_once(
        self, service: Service, client: HttpInstanceMetadata
    ) -> None:
        await client.identity()
        service.forget_tokens()
        before = service.asked
        await client.identity()
        assert service.asked == before + 3
        service.statuses[IDENTITY] = 401
        before = len(service.tokens)
        with pytest.raises(MetadataError, match="answers 401 to GET dynamic"):
            await client.identity()
        assert len(service.tokens) <= before + 2

    @pytest.mark.parametrize("status", [403, 404, 500])
    async def test_no_token_no_answer(self, service: Service, client: HttpInstanceMetadata, status: int) -> None:
        """403 is what a service answers that is switched off."""
        service.statuses["api/token"] = status
        with pytest.raises(MetadataError, match=f"answers {status} to PUT api/token"):
            await client.identity()
        assert service.asked == 0


class TestUnknown:
    @pytest.mark.parametrize("status", [301, 400, 429, 500, 503])
    async def test_an_error_of_an_optional_leaf_is_not_its_absence(
        self, service: Service, client: HttpInstanceMetadata, status: int
    ) -> None:
        service.statuses[f"{MACS}{MAC}/ipv4-prefix"] = status
        with pytest.raises(MetadataError, match=f"answers {status} to GET .*ipv4-prefix"):
            await client.interfaces()

    async def test_silence(self, service: Service) -> None:
        service.speaks.clear()
        async with HttpInstanceMetadata.connect(clock=Clock(), endpoint=service.url, timeout=0.05) as client:
            with pytest.raises(MetadataError, match="does not answer PUT api/token"):
                await client.identity()

    async def test_all_answers_of_a_call_together_are_bounded(
        self, service: Service, client: HttpInstanceMetadata, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(metadata, "CALL_SECONDS", 0.05)
        service.speaks.clear()
        with pytest.raises(MetadataError, match="for all answers"):
            await client.interfaces()

    async def test_nobody_there(self, unused_tcp_url: str) -> None:
        async with HttpInstanceMetadata.connect(clock=Clock(), endpoint=unused_tcp_url) as client:
            with pytest.raises(MetadataError, match="does not answer"):
                await client.identity()

    async def test_an_endless_answer(self, service: Service, client: HttpInstanceMetadata) -> None:
        service.leaves[IDENTITY] = " " * (MAX_ANSWER + 1)
        with pytest.raises(MetadataError, match=f"more than {MAX_ANSWER} bytes"):
            await client.identity()

    @pytest.mark.parametrize("name", ["interface-id", "device-number", "subnet-id", "vpc-id"])
    async def test_an_interface_that_is_described_in_part(
        self, service: Service, client: HttpInstanceMetadata, name: str
    ) -> None:
        del service.leaves[f"{MACS}{MAC}/{name}"]
        with pytest.raises(MetadataError, match=f"in part: {name}"):
            await client.interfaces()

    @pytest.mark.parametrize(
        ("path", "text", "message"),
        [
            (IDENTITY, "<html>", "malformed"),
            (IDENTITY, '{"instanceId": "i-1"}', "missing required field"),
            (MACS, "", "names no interface"),
            (MACS, "../../user-data", "names '../../user-data'"),
            (f"{MACS}{MAC}/device-number", "one", "device-number"),
            (f"{MACS}{MAC}/local-ipv4s", "10.1.0.4\nfe80::1", "local-ipv4s"),
            (f"{MACS}{MAC}/vpc-ipv4-cidr-blocks", "10.1.0.0/33", "vpc-ipv4-cidr-blocks"),
        ],
    )
    async def test_words_that_are_none(
        self, service: Service, client: HttpInstanceMetadata, *, path: str, text: str, message: str
    ) -> None:
        service.leaves[path] = text
        with pytest.raises(MetadataError, match=message):
            await (client.identity() if path == IDENTITY else client.interfaces())

    async def test_what_is_gone_altogether(self, service: Service, client: HttpInstanceMetadata) -> None:
        service.leaves.clear()
        with pytest.raises(MetadataError, match="has no dynamic"):
            await client.identity()
        with pytest.raises(MetadataError, match="names no interface"):
            await client.interfaces()


@pytest.fixture
def unused_tcp_url() -> str:
    """Of the discard service, where nobody listens on a machine under test."""
    return "http://127.0.0.1:9"
