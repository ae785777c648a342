"""Where the programs find the API server."""

import pytest

from integration.helm.chart import render
from tests.integration_helm.everything import CLEANUP, EVERYTHING, WORKLOADS, all_containers, without_record

PROGRAMS = {"coil-ipam-controller", "coil-egress-controller", "coil-egress-agent-node", "coil-raven", "coild"}


@pytest.mark.parametrize("values", [EVERYTHING, CLEANUP])
def test_every_program_is_told_the_address(values: dict[str, object]) -> None:
    told = {}
    for host in ("", "192.0.2.7"):
        documents = render({**values, "apiServer": {"host": host, "port": 8443}})
        for document in documents:
            if document["kind"] not in WORKLOADS:
                continue
            for container in all_containers(document).values():
                if container["command"][0] in PROGRAMS:
                    environment = {entry["name"]: entry.get("value") for entry in container.get("env", ())}
                    told[host, document["metadata"]["name"], container["name"]] = (
                        environment.get("KUBERNETES_SERVICE_HOST"),
                        environment.get("KUBERNETES_SERVICE_PORT"),
                    )
    assert {address for (host, _, _), address in told.items() if host} == {("192.0.2.7", "8443")}
    assert {address for (host, _, _), address in told.items() if not host} == {(None, None)}


@pytest.mark.parametrize("values", [EVERYTHING, CLEANUP])
def test_an_upgrade_may_reuse_values_of_a_chart_that_did_not_have_it(values: dict[str, object]) -> None:
    assert without_record(render({**values, "apiServer": None})) == without_record(render(values))
