"""The way from network namespaces inside the guest to a server on the machine, through QEMU's user-mode network."""

import os
import subprocess
from ipaddress import ip_network

from integration.cluster.network import run_command
from integration.vm.run import INSIDE_VARIABLE

_GATEWAY = "10.0.2.2"
_SECONDS = 60


def ensure_passage(address: str) -> None:
    """Route the /24 of an IPv4 address of the machine out of the guest; nothing at all on the machine itself."""
    if not os.environ.get(INSIDE_VARIABLE):
        return
    network = ip_network(f"{address}/24", strict=False)
    # So that a stage's own subnet is another one.
    run_command(["ip", "route", "replace", str(network), "via", _GATEWAY])
    run_command(["busybox", "sysctl", "-q", "-w", "net.ipv4.ip_forward=1"])
    for line in (
        "add table ip guest",
        "add chain ip guest out { type nat hook postrouting priority srcnat; }",
        'add rule ip guest out oifname "eth0" masquerade',
    ):
        subprocess.run(["nft", line], check=True, timeout=_SECONDS)
