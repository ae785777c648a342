"""An Octavia that runs for a test beside a `NeutronServer`, in which it makes the ports of VIPs; empty at first.

    with OctaviaServer.start(folder, neutron) as octavia:
        client = OpenStackClient(octavia.connect)
        …
        octavia.order("hold")

There are no amphorae: what is PENDING becomes ACTIVE after `settle` seconds, unless the test orders otherwise. The
providers are Amphora, Octavia's own driver, and a stand-in of OVN.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final, Literal

import openstack
from openstack.connection import Connection

from integration.cluster.address import free_port
from integration.cluster.process import Process
from integration.neutron.environment import find_environment
from integration.neutron.neutron_server import ANSWER_SECONDS, LOCALHOST, SERVER, NeutronServer
from integration.patience import wait_until
from integration.service import START_TIMEOUT

KINDS: Final = ("loadbalancers", "listeners", "pools", "healthmonitors")

_CONFIGURATION: Final = """\
[DEFAULT]
transport_url = fake://

[api_settings]
auth_strategy = noauth
enabled_provider_drivers = amphora:Amphora, ovn:OVN
default_provider_driver = {provider}

[database]
connection = sqlite:///{state}/octavia.sqlite

[oslo_messaging]
topic = octavia

[networking]
allow_invisible_resource_usage = true

[controller_worker]
network_driver = allowed_address_pairs_driver
"""


@dataclass(frozen=True, slots=True)
class OctaviaServer:
    """Make one with `start`."""

    process: Process
    address: IPv4Address
    port: int
    neutron: NeutronServer

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}:{self.port}"

    @classmethod
    @contextmanager
    def start(
        cls,
        folder: Path,
        neutron: NeutronServer,
        *,
        provider: str = "amphora",
        settle: float = 0.2,
        address: IPv4Address = LOCALHOST,
    ) -> Iterator["OctaviaServer"]:
        """Serving at that address of this machine. Ends with the context.

        `provider` is the one of load balancers that name none.
        """
        configuration = folder / "octavia.conf"
        configuration.write_text(_CONFIGURATION.format(state=folder, provider=provider))
        port = free_port(address, 9876)
        process = Process(
            "octavia-api",
            [str(find_environment()), str(SERVER / "octavia_api.py"), str(configuration), str(address), str(port)],
            cluster=f"octavia-{secrets.token_hex(4)}",
            log=folder / "octavia.log",
            env={
                "PYTHONPATH": str(SERVER),
                "HOME": str(folder),
                "NEUTRON": neutron.endpoint,
                "SETTLE_SECONDS": str(settle),
            },
            cwd=folder,
        )
        try:
            server = cls(process, address, port, neutron)
            process.wait_ready(server._answers, timeout=START_TIMEOUT)
            yield server
        finally:
            process.stop()

    def connect(self) -> Connection:
        """A connection to both services, without authentication."""
        return openstack.connect(
            load_yaml_config=False,
            load_envvars=False,
            auth_type="none",
            network_endpoint_override=self.neutron.endpoint,
            load_balancer_endpoint_override=self.endpoint,
            api_timeout=ANSWER_SECONDS,
        )

    def order(self, order: Literal["settle", "hold", "fail"]) -> None:
        """What becomes of load balancers that are PENDING: ACTIVE, nothing, or ERROR."""
        assert self._ask("POST", f"/test/{order}") == 204

    def settle(self) -> None:
        """Have what is pending come to an end, and wait for that."""
        self.order("settle")

        def settled() -> bool:
            with self.connect() as connection:
                return not any(
                    each["provisioning_status"].startswith("PENDING_") for each in _listed(connection, "loadbalancers")
                )

        wait_until(settled, what="no load balancer is pending")

    def writes(self) -> int:
        """How many calls it was asked to change something by."""
        connection = HTTPConnection(str(self.address), self.port, timeout=ANSWER_SECONDS)
        try:
            connection.request("GET", "/test/writes")
            return int(connection.getresponse().read())
        finally:
            connection.close()

    def snapshot(self) -> dict[str, int]:
        """How many of each kind there are."""
        with self.connect() as connection:
            return {kind: len(_listed(connection, kind)) for kind in KINDS}

    def _answers(self) -> bool:
        try:
            return self._ask("GET", "/v2.0/lbaas/providers") == 200
        except OSError:
            return False

    def _ask(self, method: str, path: str) -> int:
        """The status of the answer."""
        connection = HTTPConnection(str(self.address), self.port, timeout=ANSWER_SECONDS)
        try:
            connection.request(method, path)
            return connection.getresponse().status
        finally:
            connection.close()


def _listed(connection: Connection, kind: str) -> list[Any]:
    answer = connection.load_balancer.get(f"/lbaas/{kind}")
    answer.raise_for_status()
    return list(answer.json()[kind])
