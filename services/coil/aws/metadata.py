"""What the instance says of itself: the metadata service at its link-local address, asked with tokens (IMDSv2).

`InstanceMetadata` is the interface, `HttpInstanceMetadata` the implementation. What the service says of interfaces is
older than what EC2 says, by seconds and at times by more, so it is a hint: EC2 decides. Each answer is a snapshot of
its own; two of one call may be of different moments.

A leaf that is not there is absent: an empty tuple, or None. Everything else that is not an answer (silence, an error of
the service, words that are none) is unknown, a MetadataError. Nothing is asked twice, but for a token that the service
does not know any more.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from typing import Final, Protocol, TypeVar

import aiohttp
import msgspec

from coil.aws.ec2 import InstanceId
from coil.eni.interface import InterfaceId, SubnetId
from coil.kernel.link import MacAddress

ENDPOINT: Final = "http://169.254.169.254"
"""Of every instance; in IPv6 it is http://[fd00:ec2::254] (EC2 User Guide, "Use the Instance Metadata Service")."""
TOKEN_SECONDS: Final = 21600
"""For how long a token is asked to be good: the longest that there is."""
REQUEST_SECONDS: Final = 5.0
"""For one answer; the service is on the instance's own host, and takes milliseconds."""
CALL_SECONDS: Final = 30.0
"""For all requests of one call: some ten for each interface."""
MAX_ANSWER: Final = 1 << 16
END_NOTICES: Final = ("meta-data/spot/instance-action", "meta-data/events/recommendations/rebalance")
"""Which are not there unless the instance is about to be interrupted."""
LONGEST_NOTICE: Final = 200

_TOKEN_MARGIN: Final = 60.0
_INTERFACES: Final = "meta-data/network/interfaces/macs/"
_PRIMARY_MAC: Final = "meta-data/mac"
_MAC: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")

T = TypeVar("T")


class MetadataError(Exception):
    """The service has not answered, or nothing that could be understood: nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceIdentity:
    """What an instance keeps from its launch to its end; its type changes while it is stopped only.

    `mac` is that of its primary interface, which has no other mark: its device number may be any.
    """

    instance_id: InstanceId
    instance_type: str
    region: str
    zone: str
    account: str
    mac: MacAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataInterface:
    """An interface that is attached, as the service describes it. `local_ipv4s` begin with its primary address."""

    mac: MacAddress
    interface: InterfaceId
    device_number: int
    subnet: SubnetId
    subnet_ipv4: IPv4Network | None
    vpc: str
    vpc_ipv4s: tuple[IPv4Network, ...]
    vpc_ipv6s: tuple[IPv6Network, ...]
    local_ipv4s: tuple[IPv4Address, ...]
    ipv4_prefixes: tuple[IPv4Network, ...]
    ipv6_prefixes: tuple[IPv6Network, ...]
    groups: tuple[str, ...]


class InstanceMetadata(Protocol):
    """All calls raise MetadataError; cancelled, they leave nothing behind."""

    async def identity(self) -> InstanceIdentity: ...

    async def interfaces(self) -> list[MetadataInterface]:
        """Those of the first network card that have an IPv4 address, by device number, which is of one card only.

        Others are for EFA, have no addresses for pods, and lack some of what is told of an interface. While one is
        being attached or detached, the service may describe it in part: that is a MetadataError.
        """

    async def end_notice(self) -> str | None:
        """What EC2 has announced of the instance's end: a Spot interruption, or the recommendation to replace it, which
        may come before. None while there is neither.
        """


class HttpInstanceMetadata:
    """Implements `InstanceMetadata`. Make one with `connect`."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: str, clock: Callable[[], float]) -> None:
        self._session = session
        self._root = f"{endpoint.rstrip('/')}/latest/"
        self._clock = clock
        self._token = ""
        self._token_until = float("-inf")

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, *, clock: Callable[[], float], endpoint: str = ENDPOINT, timeout: float = REQUEST_SECONDS
    ) -> AsyncIterator["HttpInstanceMetadata"]:
        """Nothing is asked yet. `clock` is the event loop's; `timeout` is for one request, in seconds."""
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            # A proxy would ask the metadata service of its own host.
            trust_env=False,
        ) as session:
            yield cls(session, endpoint, clock)

    async def identity(self) -> InstanceIdentity:
        """See `InstanceMetadata`."""
        path = "dynamic/instance-identity/document"
        async with _bounded():
            text, mac = await self._get(path), await self._get(_PRIMARY_MAC)
        if text is None or mac is None:
            raise MetadataError(f"the metadata service has no {path if text is None else _PRIMARY_MAC}")
        try:
            document = msgspec.json.decode(text, type=_Document)
        except msgspec.DecodeError as error:
            raise MetadataError(f"{path} of the metadata service: {error}") from error
        return InstanceIdentity(
            instance_id=InstanceId(document.instance_id),
            instance_type=document.instance_type,
            region=document.region,
            zone=document.availability_zone,
            account=document.account_id,
            mac=_parse_mac(mac),
        )

    async def interfaces(self) -> list[MetadataInterface]:
        """See `InstanceMetadata`."""
        async with _bounded():
            macs = await self._get(_INTERFACES)
            if not macs:
                raise MetadataError("the metadata service names no interface")
            found = [await self._interface(_parse_mac(line)) for line in macs.splitlines()]
        return sorted((each for each in found if each is not None), key=lambda each: each.device_number)

    async def end_notice(self) -> str | None:
        """See `InstanceMetadata`."""
        async with _bounded():
            for path in END_NOTICES:
                if (text := await self._get(path)) is not None:
                    return f"{path.removeprefix('meta-data/')} {' '.join(text.split())[:LONGEST_NOTICE]}".rstrip()
        return None

    async def _interface(self, mac: MacAddress) -> MetadataInterface | None:
        decisive = await self._describe(mac, ("network-card", "local-ipv4s"))
        if any(decisive.many("network-card", int)) or not decisive.words.get("local-ipv4s"):
            return None
        described = _Description(mac, {**(await self._describe(mac, _LEAVES)).words, **decisive.words})
        subnet_ipv4 = described.many("subnet-ipv4-cidr-block", IPv4Network)
        return MetadataInterface(
            mac=mac,
            interface=InterfaceId(described.one("interface-id", str)),
            device_number=described.one("device-number", int),
            subnet=SubnetId(described.one("subnet-id", str)),
            subnet_ipv4=subnet_ipv4[0] if subnet_ipv4 else None,
            vpc=described.one("vpc-id", str),
            vpc_ipv4s=described.many("vpc-ipv4-cidr-blocks", IPv4Network),
            vpc_ipv6s=described.many("vpc-ipv6-cidr-blocks", IPv6Network),
            local_ipv4s=described.many("local-ipv4s", IPv4Address),
            ipv4_prefixes=described.many("ipv4-prefix", IPv4Network),
            ipv6_prefixes=described.many("ipv6-prefix", IPv6Network),
            groups=described.many("security-group-ids", str),
        )

    async def _describe(self, mac: MacAddress, names: Iterable[str]) -> "_Description":
        leaves = {name: await self._get(f"{_INTERFACES}{mac}/{name}") for name in names}
        return _Description(mac, {name: text.split() for name, text in leaves.items() if text is not None})

    async def _get(self, path: str) -> str | None:
        """The text at a path, or None if there is nothing."""
        status, body = await self._get_with_token(path)
        if status == 401:
            # It does not know the token, before its time: the service has started anew.
            self._token_until = float("-inf")
            status, body = await self._get_with_token(path)
        if status == 404:
            return None
        if status != 200:
            raise MetadataError(f"the metadata service answers {status} to GET {path}")
        return body

    async def _get_with_token(self, path: str) -> tuple[int, str]:
        return await self._request("GET", path, {"X-aws-ec2-metadata-token": await self._ensure_token()})

    async def _ensure_token(self) -> str:
        if self._clock() >= self._token_until:
            asked_at = self._clock()
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
            status, body = await self._request("PUT", "api/token", headers)
            if status != 200 or not (body.isascii() and body.isprintable() and body):
                raise MetadataError(f"the metadata service answers {status} to PUT api/token, without a token")
            self._token, self._token_until = body, asked_at + TOKEN_SECONDS - _TOKEN_MARGIN
        return self._token

    async def _request(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
        try:
            async with self._session.request(
                method, self._root + path, headers=headers, allow_redirects=False
            ) as response:
                return response.status, await _read_limited(response)
        except (aiohttp.ClientError, TimeoutError, OSError, UnicodeDecodeError) as error:
            reason = str(error) or type(error).__name__
            raise MetadataError(f"the metadata service does not answer {method} {path}: {reason}") from error


_LEAVES: Final = (
    *("interface-id", "device-number", "subnet-id", "subnet-ipv4-cidr-block", "security-group-ids"),
    *("vpc-id", "vpc-ipv4-cidr-blocks", "vpc-ipv6-cidr-blocks", "ipv4-prefix", "ipv6-prefix"),
)


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    instance_id: str
    instance_type: str
    region: str
    availability_zone: str
    account_id: str


@dataclass(frozen=True, slots=True)
class _Description:
    """The words of each leaf of an interface that is there."""

    mac: str
    words: Mapping[str, list[str]]

    def one(self, leaf: str, parse: Callable[[str], T]) -> T:
        values = self.many(leaf, parse)
        if len(values) != 1:
            raise MetadataError(f"the metadata service describes {self.mac} in part: {leaf} has {len(values)} values")
        return values[0]

    def many(self, leaf: str, parse: Callable[[str], T]) -> tuple[T, ...]:
        try:
            return tuple(parse(word) for word in self.words.get(leaf, ()))
        except ValueError as error:
            raise MetadataError(f"{leaf} of {self.mac}, of the metadata service: {error}") from error


def _parse_mac(line: str) -> MacAddress:
    text = line.strip().rstrip("/").lower()
    if not _MAC.fullmatch(text):
        raise MetadataError(f"the metadata service names {text[:40]!r} among the hardware addresses of interfaces")
    return MacAddress(text)


@asynccontextmanager
async def _bounded() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(CALL_SECONDS):
            yield
    except TimeoutError as error:
        raise MetadataError(f"the metadata service takes more than {CALL_SECONDS:.0f} s for all answers") from error


async def _read_limited(response: aiohttp.ClientResponse) -> str:
    body = bytearray()
    while piece := await response.content.readany():
        body += piece
        if len(body) > MAX_ANSWER:
            raise MetadataError(f"the metadata service answers with more than {MAX_ANSWER} bytes")
    return body.decode()
