"""One of the two ipam-controllers: which of them leads is asked of their metrics."""

import re
from functools import partial
from http.client import HTTPConnection, HTTPException
from ipaddress import IPv4Address

from integration.cluster.address import free_port
from integration.cluster.control_plane import ControlPlane
from integration.deployment import ipam_controller_command, ready_probe
from integration.service import Service

LEASE_SECONDS = 5
"""The shortest that an election allows."""

FLAGS = (f"--lease-duration={LEASE_SECONDS}s", "--gc-interval=3s", "--node-grace=5s", "--inspect-addr=off")
_LOCALHOST = IPv4Address("127.0.0.1")
_LEADING = re.compile(rb"^leader_election_master_status\{.*\} 1(\.0)?$", re.MULTILINE)


class Replica:
    """Started; all its lives log into one file."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.name = name
        self._metrics = free_port(_LOCALHOST, 21386)
        health = free_port(_LOCALHOST, self._metrics + 1)
        command = ipam_controller_command(plane, ports=(self._metrics, health), flags=FLAGS)
        self.service = Service(partial(plane.workspace.spawn, name, command), ready=ready_probe(health))

    def leads(self) -> bool:
        """Whether it says so; what does not answer does not lead."""
        connection = HTTPConnection(str(_LOCALHOST), self._metrics, timeout=1)
        try:
            connection.request("GET", "/metrics")
            return _LEADING.search(connection.getresponse().read()) is not None
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()
