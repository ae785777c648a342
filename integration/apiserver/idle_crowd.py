"""Connections to a webhook that only occupy room, as any pod can open them."""

import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest

from integration.patience import wait_until

CROWD: Final = 300
"""More than are served at once."""
DROPPED: Final = "coil_admission_dropped_connections_total"
kinds_of_crowd = pytest.mark.parametrize(
    ("version", "tls"), [(4, True), (4, False), (6, True), (6, False)], ids=["ipv4-tls", "ipv4", "ipv6-tls", "ipv6"]
)


@contextmanager
def idle_crowd(ipv4: str, port: int, *, version: int, tls: bool) -> Iterator[None]:
    """They are left open as long as the block lasts. Those of IPv4 come from the address that the API server has, too;
    those of IPv6 from localhost.
    """
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with ExitStack() as stack:
        for _ in range(CROWD):
            end = (ipv4 if version == 4 else "::1", port)
            plain = stack.enter_context(socket.create_connection(end, timeout=60))
            if tls:
                stack.enter_context(context.wrap_socket(plain))
        yield


def await_crowd_dropped(samples: Callable[[], Mapping[str, float]]) -> None:
    """Until the server has counted some of the crowd as closed from its side: as crowded, or as slow where the crowd
    took longer to come than a request may. `samples` are those of a process that the crowd was the first to call.
    """
    wait_until(
        lambda: sum(value for name, value in samples().items() if name.startswith(f"{DROPPED}{{")) > 0,
        what=f"{DROPPED} has grown",
    )
