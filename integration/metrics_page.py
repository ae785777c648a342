"""The `/metrics` page of a program in this network namespace."""

from http.client import HTTPConnection


def fetch_metrics(address: str) -> str:
    """The text. `address` is host and port. Raises OSError or HTTPException when nobody answers."""
    connection = HTTPConnection(address, timeout=60)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()
