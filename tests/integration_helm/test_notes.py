"""What `helm install` tells: of each profile, only what is there, and a pool that may be made as it stands."""

import re
from typing import Any

import msgspec
import pytest
import yaml

from coil.crd.address_pool import AddressPool
from coil.crd.pool_validation import validate_pool
from integration.helm.chart import profile_names, render, render_notes
from tests.integration_helm.everything import CLEANUP, WORKLOADS

_WAIT = re.compile(
    r"^ +kubectl -n kube-system (?:rollout status|wait --for=condition=complete --timeout=\w+) (\w+)/([\w-]+)$",
    re.MULTILINE,
)
# As somebody would copy it: the shell wants the last line to have nothing before its word.
_MANIFEST = re.compile(r"^kubectl apply -f - <<END\n(.*?)^END$", re.MULTILINE | re.DOTALL)


def workloads(values: dict[str, object], *profiles: str) -> set[tuple[str, str]]:
    """Those that stay; what `helm test` runs is not among them."""
    documents = [document for document in render(values, *profiles) if document["kind"] in WORKLOADS]
    found = [document for document in documents if "helm.sh/hook" not in document["metadata"].get("annotations", {})]
    return {(document["kind"].lower(), document["metadata"]["name"]) for document in found}


@pytest.mark.parametrize("profile", profile_names())
def test_every_workload_can_be_waited_for_as_told(profile: str) -> None:
    assert set(_WAIT.findall(render_notes(None, profile))) == workloads({}, profile)


@pytest.mark.parametrize("profile", profile_names())
def test_a_pool_is_told_of_where_coil_gives_addresses_of_pools(profile: str) -> None:
    coilds = [
        document for document in render(None, profile) if document["metadata"]["name"] == "coild" and "spec" in document
    ]
    arguments = [text for coild in coilds for text in coild["spec"]["template"]["spec"]["containers"][0]["args"]]
    elsewhere = {"--address-source=aws-eni", "--address-source=neutron"}
    gives = "--enable-ipam=true" in arguments and not elsewhere & {*arguments}
    manifests: list[dict[str, Any]] = [yaml.safe_load(text) for text in _MANIFEST.findall(render_notes(None, profile))]
    pools = [msgspec.convert(manifest, AddressPool) for manifest in manifests]
    assert [pool.metadata.name for pool in pools] == (["default"] if gives else [])
    assert [error for pool in pools for error in validate_pool(pool)] == []


def test_a_cleanup_tells_how_it_ends() -> None:
    notes = render_notes(CLEANUP)
    assert set(_WAIT.findall(notes)) == workloads(CLEANUP)
    assert "helm -n kube-system uninstall coil" in notes
    assert "kubectl delete namespace coil-eip-leases" in notes
    assert "kubectl delete namespace" not in render_notes({"cleanup": {"enabled": True}})
