"""egressgateway 0.6 serves a cluster, and Coil takes its place: by the steps of docs/upgrade.md, on a real API server.

The API server has egressgateway's kinds, objects and statuses, and a release of Helm's with what its chart makes. What
its agents leave on nodes is the matter of integration/eip/test_former_gateway.py. Each test goes on where the one
before has ended: they are for running as a whole.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from integration.admin_programs import write_admin_programs
from integration.apiserver.egress_world import EgressReplica
from integration.apiserver.egressgateway_kinds import DEFINITIONS, GROUP
from integration.apiserver.refusal_log import missing_rights
from integration.cluster.control_plane import ControlPlane, KubectlError
from integration.deployment import CLUSTER_NETWORKS_FLAG, EGRESS_CONTROLLER, remove_webhooks
from integration.docs.execution import Execution
from integration.docs.page import read_pages, runnable_blocks
from integration.docs.story import FROM_EGRESSGATEWAY, NODE, TENANT
from integration.helm.chart import render
from integration.patience import wait_until
from tests.coil_migrator.check.egressgateway_0_6 import (
    API,
    FEATURE,
    PLACE,
    PROGRAMS,
    gateway_document,
    policy_document,
)

pytestmark = pytest.mark.apiserver

Document = dict[str, Any]

BLOCKS: Final = runnable_blocks(read_pages())
STEPS: Final = {step.block: step for step in FROM_EGRESSGATEWAY}
TODAY: Final = "203.0.113.6"
DEFAULT: Final = "203.0.113.4"
POOLS: Final = {"ipv4": ["203.0.113.1-203.0.113.6"], "ipv4DefaultEIP": DEFAULT}
SELECTOR: Final = {"policy": "doing", "selector": {"matchLabels": {"egress": "true"}}}
FINALIZERS: Final = [f"{GROUP}/egresstunnel"]
TWO_SELECTORS: Final = {"podSelector": {"matchLabels": {"a": "b"}}, "podSubnet": ["10.0.0.0/8"]}


def of(kind: str, name: str, namespace: str = "", api: str = API, **more: Any) -> Document:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **more.pop("metadata", {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **more}


def slice_of(kind: str, policy: str, namespace: str = "") -> Document:
    labels = {"spidernet.io/policy-name": policy}
    endpoints = [{"ns": TENANT, "pod": "web-1", "ipv4": ["10.0.0.1"], "node": NODE}]
    return of(kind, f"{policy}-abcde", namespace, metadata={"labels": labels}, endpoints=endpoints)


def hook_document(kind: str) -> Document:
    """Fails while no controller is there, as that of egressgateway does."""
    webhook = {
        "name": f"{kind.lower()}.{GROUP}",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "clientConfig": {"service": {"name": "egressgateway-controller", "namespace": PLACE, "path": "/hook"}},
        "rules": [
            {
                "apiGroups": [GROUP],
                "apiVersions": ["v1beta1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["egressgateways", "egresspolicies", "egressclusterpolicies"],
            }
        ],
    }
    api = "admissionregistration.k8s.io/v1"
    return of(f"{kind}WebhookConfiguration", "egressgateway-controller", api=api, webhooks=[webhook])


OBJECTS: Final = [
    of("Namespace", TENANT, api="v1"),
    gateway_document("office", ippools=POOLS, nodeSelector=SELECTOR),
    policy_document("web", TENANT),
    policy_document("free", TENANT, egressIP={"allocatorPolicy": "rr"}),
    policy_document("lost", TENANT, egressIP={"allocatorPolicy": "rr"}),
    policy_document("both", TENANT, appliedTo=TWO_SELECTORS),
    policy_document("all", destSubnet=["198.51.100.0/24"]),
    of("EgressTunnel", NODE, metadata={"finalizers": FINALIZERS}, spec={}),
    slice_of("EgressEndpointSlice", "web", TENANT),
    slice_of("EgressClusterEndpointSlice", "all"),
]
RELEASE: Final = [
    of("ConfigMap", "egressgateway", PLACE, "v1", data={"conf.yml": FEATURE.replace("port: 7789", "port: 4790")}),
    *PROGRAMS,
    of("EgressClusterInfo", "default", spec={"extraCidr": ["10.99.0.0/16"]}),
    hook_document("Validating"),
    hook_document("Mutating"),
]
"""What its chart makes. A tunnel that the chart's pre-delete hook has not taken away is in `OBJECTS`."""
# An EgressClusterPolicy has no namespace; that of `lost` was forgotten.
EIPS: Final[list[Document]] = [
    {"ipv4": TODAY, "policies": [{"name": "free", "namespace": TENANT}]},
    {"ipv4": DEFAULT, "policies": [{"name": "all"}, {"name": "web", "namespace": TENANT}]},
]
ADDRESSES: Final[Mapping[tuple[str, ...], str]] = {
    ("egresspolicy", "web", f"--namespace={TENANT}"): DEFAULT,
    ("egresspolicy", "free", f"--namespace={TENANT}"): TODAY,
    ("egresspolicy", "lost", f"--namespace={TENANT}"): "203.0.113.5",
    ("egressclusterpolicy", "all"): DEFAULT,
}
"""That each policy has today."""


@dataclass
class Move:
    """The cluster, and an admin's shell in which `file` and `values` are what the blocks call FILE and VALUES."""

    plane: ControlPlane
    shell: Execution
    file: Path
    values: Path

    def play(self, block: str) -> str:
        """Execute the block of the page; returns what it has printed."""
        step = STEPS[block]
        printed = self.shell.run(BLOCKS[block], code=step.code)
        assert step.missing(printed) == [], printed
        return printed

    def findings(self, code: int) -> Document:
        """What the check finds, as a document, with the exit code that is expected."""
        command = ["coil-migrator", "check", f"--namespace={PLACE}", "-o", "json"]
        found: Document = json.loads(self.shell.execute(command, what="the check", code=code))
        return found

    def subjects(self, severity: str, code: int) -> set[str]:
        return {each["subject"] for each in self.findings(code)["findings"] if each["severity"] == severity}

    def read(self, *words: str) -> Document:
        found: Document = json.loads(self.plane.kubectl("get", *words, "--output=json"))
        return found


@pytest.fixture(scope="module")
def move(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Move]:
    """A cluster of its own, with egressgateway's kinds and objects and nothing of Coil's: kinds cannot be exchanged
    under the feet of others.
    """
    tools, home = tmp_path_factory.mktemp("bin"), tmp_path_factory.mktemp("home")
    write_admin_programs(tools)
    with ExitStack() as undo:
        plane = undo.enter_context(ControlPlane.start())
        plane.kubectl("create", "--filename=-", stdin=yaml.safe_dump_all(DEFINITIONS))
        names = {definition["spec"]["names"]["plural"] for definition in DEFINITIONS}
        wait_until(lambda: names <= served(plane), what="the kinds are served")
        plane.kubectl("create", "--filename=-", stdin=yaml.safe_dump_all(OBJECTS))
        patch(plane, ("egressgateway", "office"), nodeList=[{"name": NODE, "status": "Ready", "eips": EIPS}])
        for words, address in ADDRESSES.items():
            patch(plane, words, eip={"ipv4": address}, node=NODE)
        file, values = home / "policies.yaml", home / "values.yaml"
        variables = {"NODE": NODE, "FILE": str(file), "VALUES": str(values)}
        shell = Execution(kubeconfig=plane.admin_kubeconfig, home=home, programs=[tools], variables=variables)
        chart = write_chart(home / "egressgateway", RELEASE)
        shell.execute(["helm", "install", "egressgateway", str(chart), f"--namespace={PLACE}"], what="helm install")
        yield Move(plane, shell, file, values)


def served(plane: ControlPlane) -> set[str]:
    """The kinds of egressgateway's group that can be listed."""
    status, answer = plane.request("GET", f"/apis/{API}")
    found = {resource["name"] for resource in json.loads(answer)["resources"]} if status == HTTPStatus.OK else set()
    kinds = {name for name in found if "/" not in name}
    return {kind for kind in kinds if plane.request("GET", f"/apis/{API}/{kind}")[0] == HTTPStatus.OK}


def patch(plane: ControlPlane, words: Sequence[str], **status: Any) -> None:
    change = json.dumps({"status": status})
    plane.kubectl("patch", *words, "--subresource=status", "--type=merge", f"--patch={change}")


def write_chart(folder: Path, documents: Sequence[Document]) -> Path:
    """A chart of Helm's that makes these."""
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text(yaml.safe_dump({"apiVersion": "v2", "name": folder.name, "version": "0.6.9"}))
    (folder / "templates" / "all.yaml").write_text(yaml.safe_dump_all(documents))
    return folder


def test_the_check_tells_what_must_be_mended_and_which_values_keep_what_is_there(move: Move) -> None:
    move.play("check-egressgateway")
    document = move.findings(4)
    assert document["values"]["eip"] == {
        "enabled": True,
        "egressPolicies": True,
        "tunnelPort": 4790,
        "announcedInterfacesToExclude": ["^cali.*", "br-*"],
        "clusterCIDR": ["10.99.0.0/16"],
    }
    render(document["values"])
    move.values.write_text(json.dumps(document["values"]))
    assert move.subjects("must-mend", 4) == {f"EgressPolicy {TENANT}/both"}
    changed = move.subjects("changes", 4)
    assert {f"EgressTunnel {NODE}", f"EgressEndpointSlice {TENANT}/web-abcde"} <= changed
    assert {each for each in changed if "Policy" in each} == {f"EgressPolicy {TENANT}/lost"}


def test_manifests_in_a_file_are_checked_and_converted_without_a_cluster(move: Move) -> None:
    gateway = gateway_document("office", ippools=POOLS, nodeSelector=SELECTOR)
    move.file.write_text(yaml.safe_dump_all([gateway, policy_document("both", TENANT, appliedTo=TWO_SELECTORS)]))
    move.play("check-egressgateway-manifests")
    _, converted = yaml.safe_load_all(move.play("convert-egressgateway-manifests"))
    assert converted["spec"]["appliedTo"] == {"podSelector": {"matchLabels": {"a": "b"}}, "podSubnet": []}


def test_the_programs_go_and_the_objects_stay_with_their_addresses(move: Move) -> None:
    move.play("save-egressgateway")
    with pytest.raises(KubectlError, match="webhook"):
        move.plane.kubectl("label", "egressgateway", "office", "a=b")
    move.play("uninstall-egressgateway")
    left = {each for each in move.subjects("must-mend", 4) if not each.startswith("CustomResourceDefinitions")}
    assert left == {f"EgressPolicy {TENANT}/both", f"EgressTunnel {NODE}"}
    for block in ("apply-saved-policies", "delete-what-egressgateway-left", "replace-kinds-of-egressgateway"):
        move.play(block)
    assert move.subjects("must-mend", 0) == set()
    # The API server takes a definition in some time after it has accepted it.
    wait_until(
        lambda: "failPolicy" in move.read("egressgateway", "office")["spec"], what="the chart's schema is served"
    )
    gateway = move.read("egressgateway", "office")
    assert gateway["spec"]["ippools"] == POOLS
    assert (gateway["spec"]["failPolicy"], gateway["spec"]["nodeSelector"]["policy"]) == ("Closed", "doing")
    assert gateway["status"]["nodeList"][0]["eips"] == EIPS
    assert "finalizers" not in gateway["metadata"]
    for name, address in (("free", TODAY), ("lost", "203.0.113.5")):
        pinned = move.read("egp", name, f"--namespace={TENANT}")
        assert pinned["spec"]["egressIP"] == {"allocatorPolicy": "rr", "useNodeIP": False, "ipv4": address}


def test_the_chart_is_installed_with_the_values_and_each_policy_keeps_its_address(move: Move) -> None:
    move.play("install-after-egressgateway")
    # The API server cannot reach a Service; the controller's webhooks get a URL.
    remove_webhooks(move.plane, of=EGRESS_CONTROLLER)
    controller = EgressReplica(move.plane, "egress-controller", "--enable-egress-policies", CLUSTER_NETWORKS_FLAG)
    controller.service.wait_ready()

    def kept() -> bool:
        # What egressgateway has written has no conditions. The controller's first status can be without an address:
        # that of the translated policy is not known yet.
        statuses = [(move.read(*words).get("status", {}), address) for words, address in ADDRESSES.items()]
        policies = move.read("egressgatewaypolicies", f"--namespace={TENANT}")["items"]
        found = {each["metadata"]["name"]: each.get("status", {}).get("eip", {}).get("ipv4") for each in policies}
        served = found == {"web": DEFAULT, "free": TODAY, "lost": "203.0.113.5", "both": DEFAULT, "egcp-all": DEFAULT}
        return served and all(
            status.get("conditions") and status.get("eip", {}).get("ipv4") == address for status, address in statuses
        )

    wait_until(kept, what="the controller serves the policies with the addresses that they had")
    move.play("see-egressgateway-policies")
    assert missing_rights(controller.service.process.log) == []
    assert [line for line in controller.lines() if line["level"] == "error"] == []
