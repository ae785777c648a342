"""One of the two ipam-controllers: which of them leads is asked of their metrics."""

from functools import partial
from ipaddress import IPv4Address

from integration.cluster.address import free_port
from integration.cluster.control_plane import ControlPlane
from integration.deployment import ipam_controller_command, leader_probe, ready_probe
from integration.service import Service

LEASE_SECONDS = 5
"""The shortest that an election allows."""

FLAGS = (f"--lease-duration={LEASE_SECONDS}s", "--gc-interval=3s", "--node-grace=5s", "--inspect-addr=off")
_LOCALHOST = IPv4Address("127.0.0.1")


class Replica:
    """Started; all its lives log into one file. `leads` tells whether it says so."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.name = name
        metrics = free_port(_LOCALHOST, 21386)
        health = free_port(_LOCALHOST, metrics + 1)
        command = ipam_controller_command(plane, ports=(metrics, health), flags=FLAGS)
        self.service = Service(partial(plane.workspace.spawn, name, command), ready=ready_probe(health))
        self.leads = leader_probe(metrics)
