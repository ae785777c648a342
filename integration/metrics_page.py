"""The `/metrics` page of a program in this network namespace."""

from collections.abc import Callable
from http.client import HTTPConnection, HTTPException

from prometheus_client.parser import text_string_to_metric_families

from integration.patience import wait_until


def fetch_metrics(address: str) -> str:
    """The text. `address` is host and port. Raises OSError or HTTPException when nobody answers."""
    connection = HTTPConnection(address, timeout=60)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def parse_samples(page: str) -> dict[str, float]:
    """The samples of a page, by name and labels as they are written."""
    samples = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def fetch_here(port: int) -> str:
    """The metrics of a program on localhost; empty when nobody answers."""
    try:
        return fetch_metrics(f"127.0.0.1:{port}")
    except (OSError, HTTPException):
        return ""


def await_followed(fetch: Callable[[], str], wanted: set[str]) -> None:
    """Return when each of these has been listed and has been watched, by the names in the program's metrics."""

    def are_followed() -> bool:
        found: dict[str, set[str]] = {"informer_lists": set(), "informer_watches": set()}
        for family in text_string_to_metric_families(fetch()):
            if family.name in found:
                found[family.name] |= {
                    sample.labels["resource"]
                    for sample in family.samples
                    if sample.name.endswith("_total") and sample.value
                }
        return all(names >= wanted for names in found.values())

    wait_until(are_followed, what=f"{', '.join(sorted(wanted))} are listed and watched")
