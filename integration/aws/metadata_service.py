"""The instance metadata service of the tests: what the strict EC2 has, some seconds later, to those who have a token.

    with MetadataService(ec2, netns=router) as service:
        service.lag = 30.0
        ... instances ask http://169.254.169.254 there ...

Who asks is an instance by its address, as on AWS by its link. The service is version 2 only: without a token there is
no answer but 401.
"""

import asyncio
import json
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Final

from aiohttp import web

from coil.kernel.family import IPAddress
from integration.aws.ec2_state import Ec2State, Interface, read_state
from integration.aws.strict_ec2 import ACCOUNT, REGION, StrictEc2
from integration.netns.netns import call_inside
from integration.side_thread import SideThread

AUTH_HEADER: Final = "X-aws-ec2-metadata-token"
TTL_HEADER: Final = "X-aws-ec2-metadata-token-ttl-seconds"
LONGEST_TTL: Final = 21600
ROLE: Final = "coil-node"
"""The instances' role. Its credentials are as good as any to moto."""
_HISTORY: Final = 4096
_ROLES: Final = "meta-data/iam/security-credentials/"
_MACS: Final = "meta-data/network/interfaces/macs/"


class MetadataService(SideThread):
    """A context manager. Without `netns`, it listens on 127.0.0.1 and takes everybody for `instance`."""

    def __init__(
        self,
        ec2: StrictEc2,
        *,
        instance: str = "",
        netns: Path | None = None,
        address: str = "127.0.0.1",
        port: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("metadata service")
        self.lag = 0.0
        """How many seconds old the answers about interfaces are."""
        self._frozen: Ec2State | None = None
        self.speaks = threading.Event()
        """While it is clear, questions wait for their answers."""
        self.speaks.set()
        self.status = 0
        """In place of every answer, if not 0."""
        self.notices: dict[str, str] = {}
        """What is announced of the instances' end, by path; they are not there otherwise."""
        self.asked: list[str] = []
        """The paths that were asked for with a token, in their order."""
        self._ec2 = ec2
        self._instance = instance
        self._clock = clock
        self._tokens: dict[str, float] = {}
        self._history: deque[tuple[float, Ec2State]] = deque(maxlen=_HISTORY)
        listen = _listener(address, port)
        self._socket = call_inside(netns, listen) if netns is not None else listen()
        self.endpoint = f"http://{address}:{self._socket.getsockname()[1]}"
        self._note()
        ec2.watchers.append(self._note)

    def __exit__(self, *how: object) -> None:
        self._ec2.watchers.remove(self._note)
        self.speaks.set()
        super().__exit__(*how)
        self._socket.close()

    def forget_tokens(self) -> None:
        """As when the service is started anew."""
        self._tokens = {}

    def freeze(self) -> None:
        """From now on, describe the interfaces as they are at this moment, whatever changes."""
        self._frozen = self._state(age=0.0)

    def thaw(self) -> None:
        """The end of `freeze`."""
        self._frozen = None

    @property
    def looks(self) -> int:
        """How often anybody has asked which interfaces an instance has."""
        return self.asked.count(_MACS)

    def work(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.0)
        await runner.setup()
        await web.SockSite(runner, self._socket).start()
        await asyncio.to_thread(self.stopped.wait)
        await runner.cleanup()

    def _note(self) -> None:
        self._history.append((self._clock(), read_state(self._ec2)))

    def _state(self, *, age: float) -> Ec2State:
        """As it was so many seconds ago, or at first."""
        until = self._clock() - age
        entries = list(self._history)
        return next((state for at, state in reversed(entries) if at <= until), entries[0][1])

    async def _answer(self, request: web.Request) -> web.Response:
        await asyncio.to_thread(self.speaks.wait)
        if self.status:
            return web.Response(status=self.status)
        path = request.path.removeprefix("/latest/")
        if request.method == "PUT":
            return self._give_token(request) if path == "api/token" else web.Response(status=405)
        if self._tokens.get(request.headers.get(AUTH_HEADER, ""), 0.0) <= self._clock():
            return web.Response(status=401)
        self.asked.append(path)
        text = self._leaf(path, self._who(request))
        return web.Response(status=404) if text is None else web.Response(text=text)

    def _give_token(self, request: web.Request) -> web.Response:
        ttl = request.headers.get(TTL_HEADER, "")
        if not ttl.isdecimal() or not 1 <= int(ttl) <= LONGEST_TTL:
            return web.Response(status=400)
        if "X-Forwarded-For" in request.headers:
            return web.Response(status=403)
        token = secrets.token_urlsafe(40)
        self._tokens[token] = self._clock() + int(ttl)
        return web.Response(text=token, headers={TTL_HEADER: ttl})

    def _who(self, request: web.Request) -> str:
        if self._instance:
            return self._instance
        address = ip_address(request.remote or "")
        owners = self._state(age=0.0).interfaces.values()
        return next((each.instance for each in owners if _has(each, address)), "")

    def _leaf(self, path: str, instance: str) -> str | None:
        now, then = self._state(age=0.0), self._frozen or self._state(age=self.lag)
        if instance not in now.instances:
            return None
        interfaces = then.attached_to(instance)
        if path == _MACS:
            return "\n".join(f"{each.mac}/" for each in interfaces) or None
        if path.startswith(_MACS):
            mac, _, name = path.removeprefix(_MACS).partition("/")
            described = {each.mac: _describe(each, then) for each in interfaces}
            return described.get(mac, {}).get(name) or None
        primary = now.primary_of(instance)
        leaves = {
            "dynamic/instance-identity/document": json.dumps(
                {
                    "accountId": ACCOUNT,
                    "availabilityZone": primary.subnet.zone,
                    "instanceId": instance,
                    "instanceType": now.instances[instance],
                    "privateIp": str(primary.addresses[0]),
                    "region": REGION,
                    "version": "2017-09-30",
                }
            ),
            _ROLES: ROLE,
            f"{_ROLES}{ROLE}": json.dumps(_credentials()),
            "meta-data/instance-id": instance,
            "meta-data/local-ipv4": str(primary.addresses[0]),
            "meta-data/mac": primary.mac,
            **self.notices,
        }
        return leaves.get(path)


def _credentials() -> dict[str, str]:
    now = datetime.now(UTC)
    return {
        "Code": "Success",
        "LastUpdated": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "Type": "AWS-HMAC",
        "AccessKeyId": "ASIATESTING",
        "SecretAccessKey": "testing",
        "Token": "testing",
        "Expiration": f"{now + timedelta(hours=6):%Y-%m-%dT%H:%M:%SZ}",
    }


def _has(interface: Interface, address: IPAddress) -> bool:
    return bool(interface.instance) and any(address in network for network in interface.networks)


def _describe(interface: Interface, state: Ec2State) -> dict[str, str]:
    """Its leaves; what is empty is not there (EC2 User Guide, "Instance metadata categories")."""
    cidrs = state.vpcs[interface.subnet.vpc]
    leaves: dict[str, Sequence[object]] = {
        "device-number": [interface.device],
        "network-card": [interface.card] if interface.card else [],
        "interface-id": [interface.id],
        "ipv4-prefix": [each for each in interface.prefixes if each.version == 4],
        "ipv6-prefix": [each for each in interface.prefixes if each.version == 6],
        "ipv6s": interface.ipv6_addresses,
        "local-ipv4s": interface.addresses,
        "mac": [interface.mac],
        "owner-id": [ACCOUNT],
        "security-group-ids": interface.groups,
        "subnet-id": [interface.subnet.id],
        "subnet-ipv4-cidr-block": [interface.subnet.ipv4],
        "vpc-id": [interface.subnet.vpc],
        "vpc-ipv4-cidr-block": [each for each in cidrs if each.version == 4][:1],
        "vpc-ipv4-cidr-blocks": [each for each in cidrs if each.version == 4],
        "vpc-ipv6-cidr-blocks": [each for each in cidrs if each.version == 6],
    }
    return {name: "\n".join(map(str, values)) for name, values in leaves.items()}


def _listener(address: str, port: int) -> Callable[[], socket.socket]:
    def listen() -> socket.socket:
        family = socket.AF_INET if isinstance(ip_address(address), IPv4Address) else socket.AF_INET6
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        made.listen(128)
        return made

    return listen
