"""The API server from before rules: custom resources are judged by their schemas, and by webhooks if there are any."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coil.crd.definition import RULES
from integration.cluster.control_plane import ControlPlane
from integration.demo.workload import pool_document
from integration.deployment import POOLS_PATH, apply_kinds
from integration.patience import wait_until

_DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/addresspools.coil.cybozu.com"
_MIXED = pool_document("mixed", {"subnets": [{"ipv4": "10.241.0.0/24"}, {"ipv6": "fd41::/120"}]})


@contextmanager
def without_rules(plane: ControlPlane) -> Iterator[None]:
    """The rules of AddressPools are out of force meanwhile."""

    def refused() -> bool:
        return plane.request("POST", f"{POOLS_PATH}?dryRun=All", json.dumps(_MIXED).encode())[0] == 422

    if not refused():  # a server that knows no rules
        yield
        return
    definition = plane.read(_DEFINITION)
    without = json.dumps({**definition, "spec": _drop_rules(definition["spec"])}).encode()
    status, answer = plane.request("PUT", _DEFINITION, without)
    assert status == 200, answer
    wait_until(lambda: not refused(), what="the API server has forgotten the rules")
    try:
        yield
    finally:
        apply_kinds(plane)
        wait_until(refused, what="the API server knows the rules again")


def _drop_rules(schema: Any) -> Any:
    """A copy without `x-kubernetes-validations` at any place."""
    if isinstance(schema, dict):
        return {key: _drop_rules(value) for key, value in schema.items() if key != RULES}
    return [_drop_rules(value) for value in schema] if isinstance(schema, list) else schema
