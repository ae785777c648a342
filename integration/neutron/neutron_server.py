"""A Neutron that runs for a test: the real API server on sqlite, empty at first.

    with NeutronServer.start(folder, hosts=["node-a"]) as neutron:
        client = OpenStackClient(neutron.connect)
        …
        neutron.set_status(port, "ACTIVE")

`neutron.snapshot()` counts what it holds, to be compared before and after. There are no agents: a port of one of
`hosts` is bound, and becomes ACTIVE when Neutron is told so.
"""

import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

import openstack
from openstack.connection import Connection

from coil.neutron.identity import Kind, parse_identity
from integration.cluster.address import free_port
from integration.cluster.process import Process
from integration.neutron.environment import find_environment
from integration.service import START_TIMEOUT

SERVER: Final = Path(__file__).parent / "server"
KINDS: Final = ("networks", "subnets", "routers", "ports", "security-groups", "floatingips")
PROJECT: Final = "5e1f5a2c0d6b4b7e8d1c2a3b4c5d6e7f"
"""Of the accounts."""
LOCALHOST: Final = IPv4Address("127.0.0.1")
ANSWER_SECONDS: Final = 150.0
"""For one answer: there is one process for all, and on a busy machine a call waits for many others."""

_CONFIGURATION: Final = """\
[DEFAULT]
core_plugin = ml2
service_plugins = router,tag,flavors
auth_strategy = {auth}
transport_url = fake://
api_paste_config = {paste}
state_path = {state}
rpc_workers = 0
rpc_state_report_workers = 0
dhcp_agent_notification = false
notify_nova_on_port_status_changes = false
notify_nova_on_port_data_changes = false
global_physnet_mtu = {mtu}
pagination_max_limit = {page}

[database]
connection = sqlite:///{state}/neutron.sqlite

[oslo_concurrency]
lock_path = {state}/lock

[ml2]
type_drivers = vxlan,flat
tenant_network_types = vxlan
mechanism_drivers = plugged
extension_drivers = port_security

[ml2_type_vxlan]
vni_ranges = 1:10000

[ml2_type_flat]
flat_networks = *

[plugged]
hosts = {hosts}

[placement]
# There is none. With this the segments plugin finds that out at once, in place of asking for credentials.
auth_type = none

[quotas]
{quotas}
"""


def account_headers(user: str, roles: Sequence[str]) -> dict[str, str]:
    """What Keystone's middleware tells a service of who calls it (keystonemiddleware, `auth_token`)."""
    return {"X-User-Id": user, "X-Project-Id": PROJECT, "X-Roles": ",".join(roles)}


@dataclass(frozen=True, slots=True)
class NeutronServer:
    """Make one with `start`. Its `endpoint` is the Networking API's."""

    process: Process
    address: IPv4Address
    port: int
    policies: bool

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}:{self.port}"

    @classmethod
    @contextmanager
    def start(
        cls,
        folder: Path,
        *,
        hosts: Sequence[str] = (),
        mtu: int = 1500,
        quotas: dict[str, int] | None = None,
        page: int = -1,
        policies: bool = False,
        address: IPv4Address = LOCALHOST,
    ) -> Iterator["NeutronServer"]:
        """Serving at that address of this machine. Ends with the context.

        Without `policies` everybody may do everything. With them, Neutron's own decide for the account that a Keystone
        in front of it names (`integration.neutron.keystone`).

        `mtu` is that of the network below the VXLANs; no `quotas` are no limits. `page` is how many objects an answer
        has at most; -1 is any number.
        """
        interpreter = find_environment()
        limits = {**{f"quota_{kind}": -1 for kind in _QUOTAS}, **(quotas or {})}
        paste = interpreter.parent.parent / "etc" / "neutron" / "api-paste.ini"
        if policies:
            # The Keystone in front has checked the token.
            pipeline = paste.read_text().replace("authtoken keystonecontext", "keystonecontext")
            paste = folder / "api-paste.ini"
            paste.write_text(pipeline)
        configuration = folder / "neutron.conf"
        configuration.write_text(
            _CONFIGURATION.format(
                auth="keystone" if policies else "noauth",
                paste=paste,
                state=folder,
                mtu=mtu,
                page=page,
                hosts=",".join(hosts),
                quotas="\n".join(f"{name} = {value}" for name, value in limits.items()),
            )
        )
        port = free_port(address, 9696)
        process = Process(
            "neutron-api",
            [str(interpreter), str(SERVER / "neutron_api.py"), str(configuration), str(address), str(port)],
            cluster=f"neutron-{secrets.token_hex(4)}",
            log=folder / "neutron.log",
            env={"PYTHONPATH": str(SERVER), "HOME": str(folder)},
            cwd=folder,
        )
        try:
            server = cls(process, address, port, policies)
            process.wait_ready(server._answers, timeout=START_TIMEOUT)
            yield server
        finally:
            process.stop()

    def connect(self) -> Connection:
        """An administrator's connection."""
        connection = openstack.connect(
            load_yaml_config=False,
            load_envvars=False,
            auth_type="none",
            network_endpoint_override=self.endpoint,
            api_timeout=ANSWER_SECONDS,
        )
        if self.policies:
            connection.session.additional_headers.update(account_headers("administrator", ["admin"]))
        return connection

    def add_public_network(self, name: str, cidr: str) -> None:
        """As an administrator of the cloud makes one: floating IPs are addresses of `cidr`."""
        with self.connect() as connection:
            body = {"network": {"name": name, "router:external": True, "provider:network_type": "flat"}}
            body["network"]["provider:physical_network"] = name
            network = connection.network.post("/networks", json=body).json()["network"]["id"]
            subnet = {"network_id": network, "cidr": cidr, "ip_version": 4, "enable_dhcp": False}
            connection.network.post("/subnets", json={"subnet": subnet}).raise_for_status()

    def set_quota(self, project: str, **limits: int) -> None:
        """How many objects of a kind the project may have; without limits, as many as at the start."""
        with self.connect() as connection:
            path = f"/quotas/{project}"
            if limits:
                # Forced, as what the project has may have become more since somebody counted it.
                body = {"quota": {**limits, "force": True}}
                connection.network.put(path, json=body).raise_for_status()
            else:
                # There may be none of its own.
                assert connection.network.delete(path).status_code in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND)

    def set_status(self, port: str, status: str) -> None:
        """Tell Neutron what an agent would: ACTIVE, the port's interface is plugged in; DOWN, it is not."""
        assert self._ask("POST", f"/test/ports/{port}/{status}") == 204

    def snapshot(self) -> dict[str, int]:
        """How many of each kind there are."""
        with self.connect() as connection:
            return {kind: len(_listed(connection, kind)) for kind in KINDS}

    def connected_subnets(self, kinds: Collection[Kind]) -> frozenset[str]:
        """The IDs of the subnets of these kinds, of any cluster, that have a port."""
        with self.connect() as connection:
            connected = {fixed["subnet_id"] for port in _listed(connection, "ports") for fixed in port["fixed_ips"]}
            subnets = {each["id"]: parse_identity(each["name"]) for each in _listed(connection, "subnets")}
        found = {subnet for subnet, identity in subnets.items() if identity is not None and identity.kind in kinds}
        return frozenset(found & connected)

    def revisions(self, kind: str) -> dict[str, tuple[str, int]]:
        """Name and number of revision of each object of a kind, by ID: a write of whatever kind raises the number."""
        with self.connect() as connection:
            found = _listed(connection, kind)
        return {each["id"]: (each["name"], each["revision_number"]) for each in found}

    def _answers(self) -> bool:
        try:
            return self._ask("GET", "/v2.0/extensions") in (200, 401)
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


_QUOTAS: Final = ("network", "subnet", "port", "router", "floatingip", "security_group", "security_group_rule")


def _listed(connection: Connection, kind: str) -> list[Any]:
    answer = connection.network.get(f"/{kind}")
    answer.raise_for_status()
    return list(answer.json()[kind.replace("-", "_")])
