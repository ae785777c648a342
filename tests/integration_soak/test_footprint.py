"""Descriptors of this very process: TCP connections are left out, everything else counts."""

import os
import socket

from integration.soak.footprint import count_lasting


def test_connections_to_others_do_not_count() -> None:
    before = count_lasting(os.getpid())
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        assert count_lasting(os.getpid()) == before


def test_other_sockets_and_files_do() -> None:
    before = count_lasting(os.getpid())
    left, right = socket.socketpair()
    with left, right, open(os.devnull):  # noqa: PTH123 - a descriptor, whichever
        assert count_lasting(os.getpid()) == before + 3
