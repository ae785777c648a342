"""Addresses and ports that concurrent clusters do not fight over.

A control plane alone listens on a random address of 127.0.0.0/8, a cluster on its own subnet's: an address that nobody
else uses, so a port that is free there once stays free over restarts. On 127.0.0.1, where controllers have their
metrics and health, a port belongs to the process that was given it first, until that ends: what it starts there may
die and come back, and nobody else is given the port between.
"""

from __future__ import annotations

import secrets
import socket
from ipaddress import IPv4Address

from integration.cluster.family import Address


def random_loopback() -> IPv4Address:
    """A random address of 127.64.0.0/10, far from the well-known ones."""
    return IPv4Address("127.64.0.0") + (secrets.randbits(22) | 1)


def is_free(address: Address, port: int) -> bool:
    """Whether a TCP server could listen there now; false also when somebody listens on every address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((str(address), port))
        except OSError:
            return False
    return True


def free_port(address: Address, preferred: int) -> int:
    """``preferred`` or the next port above it that is free on ``address``, and no other living process' by this."""
    for port in range(preferred, preferred + 100):
        if is_free(address, port) and _is_ours(address, port):
            return port
    raise OSError(f"no free port on {address} from {preferred} on")


_claims: dict[tuple[Address, int], socket.socket] = {}


def _is_ours(address: Address, port: int) -> bool:
    """Whether this process has the port, by a claim that ends with it: an abstract name (unix(7)) has one owner."""
    if (address, port) in _claims:
        return True
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0coil-port-{address}-{port}")
    except OSError:
        claim.close()
        return False
    _claims[address, port] = claim
    return True
