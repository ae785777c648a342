"""The way from network namespaces inside the guest to a server on the machine, through QEMU's user-mode network."""

import os
import subprocess
from ipaddress import ip_address, ip_network

from integration.cluster.network import run_command
from integration.vm.run import INSIDE_VARIABLE

_LINK = "eth0"
_GATEWAYS = {4: "10.0.2.2", 6: "fec0::2"}
_PREFIX_LENGTHS = {4: 24, 6: 64}
_OWN = {4: "10.0.2.15", 6: "fec0::15"}
"""The guest's addresses; it is booted with the first alone."""
_SECONDS = 60


def ensure_passage(address: str) -> None:
    """Route the /24 or /64 of an address of the machine out of the guest; nothing at all on the machine itself."""
    if not os.environ.get(INSIDE_VARIABLE):
        return
    version = ip_address(address).version
    if version == 6:
        run_command(["ip", "address", "replace", f"{_OWN[6]}/{_PREFIX_LENGTHS[6]}", "dev", _LINK, "nodad"])
    network = ip_network(f"{address}/{_PREFIX_LENGTHS[version]}", strict=False)
    # So that a stage's own subnet is another one.
    run_command(["ip", "route", "replace", str(network), "via", _GATEWAYS[version]])
    forwarding = {4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding"}[version]
    run_command(["busybox", "sysctl", "-q", "-w", f"{forwarding}=1"])
    family = {4: "ip", 6: "ip6"}[version]
    for line in (
        f"add table {family} guest",
        f"add chain {family} guest out {{ type nat hook postrouting priority srcnat; }}",
        # Not `masquerade`: for IPv6 it chooses among the addresses of all links, by the destination.
        f'add rule {family} guest out oifname "{_LINK}" snat to {_OWN[version]}',
    ):
        subprocess.run(["nft", line], check=True, timeout=_SECONDS)
