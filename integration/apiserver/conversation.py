"""One TCP connection between two network namespaces."""

import subprocess
import sys

_SECONDS = 60

# Listens on the address, tells its port, answers the first who connects with the address that it sees.
_SERVER = f"""
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.create_server((sys.argv[1], 0), family=family) as server:
    server.settimeout({_SECONDS})
    print(server.getsockname()[1], flush=True)
    connection, peer = server.accept()
    connection.sendall(peer[0].encode())
    connection.close()
"""
_CLIENT = f"""
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout={_SECONDS}) as connection:
    print(connection.recv(100).decode())
"""


def converse(client: str, server: str, address: str) -> str:
    """Connect from the namespace at the path `client` to `address`, which is in the one at `server`.

    Returns the client's address as the server saw it. Raises CalledProcessError when they do not come together.
    """
    listen = ["nsenter", f"--net={server}", "--", sys.executable, "-IS", "-c", _SERVER, address]
    with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as listening:
        try:
            assert listening.stdout is not None
            port = listening.stdout.readline().strip()
            connect = ["nsenter", f"--net={client}", "--", sys.executable, "-IS", "-c", _CLIENT, address, port]
            done = subprocess.run(connect, capture_output=True, text=True, timeout=2 * _SECONDS, check=True)
        finally:
            listening.kill()
    return done.stdout.strip()
