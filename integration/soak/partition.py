"""Cuts a node off, at the port of the switch that it hangs on: packets vanish and nobody is told.

Neither end sees a reset or a lost carrier; connections stay open until somebody gives them up.
"""

from integration.cluster.network import Network


def cut(network: Network, port: str) -> None:
    """Drop everything, both ways."""
    network.fabric.run("bridge", "link", "set", "dev", port, "state", "0")


def deafen(network: Network, port: str) -> None:
    """Drop what is for the node; what it says is heard. Requests are carried out, and their answers lost."""
    # A switch that neither knows where the node is nor tries every port does not deliver.
    _let_through(network, port, "off")
    network.fabric.run("ip", "link", "set", "dev", port, "type", "bridge_slave", "fdb_flush")


def heal(network: Network, port: str) -> None:
    """Undo either. Idempotent."""
    _let_through(network, port, "on")
    network.fabric.run("bridge", "link", "set", "dev", port, "state", "3")


def _let_through(network: Network, port: str, switch: str) -> None:
    settings = [word for name in ("learning", "flood", "mcast_flood", "bcast_flood") for word in (name, switch)]
    network.fabric.run("bridge", "link", "set", "dev", port, *settings)
