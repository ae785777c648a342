"""Each coild may change the conditions of its own Node: the chart's policy, with bound tokens.

The role covers all nodes. The API server takes the node of a token from the pod that the token is bound to.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from coil.crd.builtin import NODES
from coil.crd.node_condition import (
    ADDRESSES_AVAILABLE,
    NETWORK_UNAVAILABLE,
    POD_LIMIT_TOO_HIGH,
    STATE_REMOVED,
    TRAFFIC_DIVERTED,
    TRAFFIC_DROPPED,
)
from coil.kube.client import KubeClient
from coil.kube.errors import ApiError
from coild.eni.node_condition import describe_addresses, describe_diversions, describe_pod_limit
from coild.model.node_condition import plan_conditions
from coild.node.condition import describe_available, describe_dropped, describe_removed
from integration.apiserver.node_pair import HERE, THERE, NodePair, open_node_pair
from integration.cluster.control_plane import ControlPlane
from integration.deployment import apply_eni_access, apply_own_node_policies
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

OTHERS = "coild may change the status of its own Node only"
CONDITIONS = f"{ADDRESSES_AVAILABLE}, {POD_LIMIT_TOO_HIGH}, {TRAFFIC_DIVERTED}, {TRAFFIC_DROPPED} and {STATE_REMOVED}"
MORE = f"coild may change only the conditions {CONDITIONS} of its Node"
FOREIGN: Final = {"type": "Ready", "status": "True", "reason": "Fine", "message": ""}
Patch = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Guarded:
    """An API server that enforces the policy, and what is done with the status of its two Nodes."""

    pair: NodePair

    def patch(self, node: str, patch: Patch, *, kubeconfig: Path) -> None:
        """The status of a Node, as coild does it. Raises ApiError."""

        async def send() -> None:
            async with KubeClient.connect(kubeconfig) as client:
                await client.patch(NODES, node, patch, subresource="status")

        asyncio.run(send())

    def refusal(self, node: str, patch: Patch, *, kubeconfig: Path) -> str:
        """What is said to a patch that must be refused."""
        with pytest.raises(ApiError) as refused:
            self.patch(node, patch, kubeconfig=kubeconfig)
        return str(refused.value)

    def conditions(self, node: str) -> dict[str, str]:
        return {each["type"]: each["status"] for each in self.documents(node)}

    def condition_patch(self, node: str, obstacle: str | None, diversions: Sequence[str] = ()) -> Patch:
        """As coild makes it."""
        limit = describe_pod_limit(pods_limit=110, ip_max=18 if diversions else 110)
        removed = describe_removed(next(iter(diversions), None))
        found = describe_diversions(diversions), describe_dropped(diversions), removed
        wanted = describe_addresses(obstacle), limit, *found
        return plan_conditions(self.documents(node), wanted, now=datetime.now(UTC))

    def documents(self, node: str) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = self.pair.plane.read(f"/api/v1/nodes/{node}")["status"].get("conditions", [])
        return found


@pytest.fixture(scope="module")
def guarded(plane: ControlPlane) -> Iterator[Guarded]:
    apply_eni_access(plane)
    conditions = [{"op": "add", "path": "/status/conditions", "value": [FOREIGN]}]
    with open_node_pair(plane) as pair:
        guarded = Guarded(pair)
        for node in (HERE, THERE):
            guarded.patch(node, conditions, kubeconfig=plane.admin_kubeconfig)
        stranger = pair.token_of(THERE)
        attempts = iter(range(10_000))

        def is_enforced() -> bool:
            # Until the role is known it is refused for another reason, and until the policy is, it succeeds.
            patch = guarded.condition_patch(HERE, f"attempt {next(attempts)}")
            try:
                guarded.patch(HERE, patch, kubeconfig=stranger)
            except ApiError as error:
                return OTHERS in str(error)
            return False

        wait_until(is_enforced, what="the API server enforces the policy")
        yield guarded


def test_its_own_node_has_the_conditions_that_coild_says(guarded: Guarded) -> None:
    own = guarded.pair.token_of(HERE)
    for obstacle, available in (("no address is free", "False"), (None, "True")):
        for diversions, diverted in ((["a rule of others"], "True"), ([], "False")):
            guarded.patch(HERE, guarded.condition_patch(HERE, obstacle, diversions), kubeconfig=own)
            told = dict.fromkeys((POD_LIMIT_TOO_HIGH, TRAFFIC_DIVERTED, TRAFFIC_DROPPED, STATE_REMOVED), diverted)
            told[ADDRESSES_AVAILABLE] = available
            assert guarded.conditions(HERE) == {"Ready": "True", **told}


def test_the_node_of_another_coild_is_not_its_own(guarded: Guarded) -> None:
    before = guarded.conditions(THERE)
    said = guarded.refusal(THERE, guarded.condition_patch(THERE, "malice"), kubeconfig=guarded.pair.token_of(HERE))
    assert OTHERS in said
    assert f"its token is bound to {HERE}" in said
    assert guarded.conditions(THERE) == before


def test_a_token_that_is_of_no_pod_is_good_for_no_node(guarded: Guarded) -> None:
    unbound = guarded.pair.plane.kubeconfig_for("coild")
    said = guarded.refusal(HERE, guarded.condition_patch(HERE, "stolen"), kubeconfig=unbound)
    assert OTHERS in said
    assert "its token is bound to no node" in said


@pytest.mark.parametrize(
    "patch",
    [
        [{"op": "replace", "path": "/status/conditions/0/status", "value": "False"}],
        [{"op": "add", "path": "/status/addresses", "value": [{"type": "InternalIP", "address": "192.0.2.1"}]}],
        [{"op": "add", "path": "/status/allocatable", "value": {"pods": "1000"}}],
        [{"op": "add", "path": "/status/capacity", "value": {"example.com/device": "8"}}],
        [{"op": "add", "path": "/status/daemonEndpoints", "value": {"kubeletEndpoint": {"Port": 10251}}}],
        [{"op": "add", "path": "/status/images", "value": [{"names": ["example.com/image"], "sizeBytes": 1}]}],
        [{"op": "replace", "path": "/status/nodeInfo/kubeletVersion", "value": "v1.99.0"}],
        [{"op": "add", "path": "/status/phase", "value": "Terminated"}],
        [{"op": "add", "path": "/status/runtimeHandlers", "value": [{"name": "sandboxed"}]}],
        [{"op": "add", "path": "/status/volumesAttached", "value": [{"name": "volume", "devicePath": "/dev/null"}]}],
        [{"op": "add", "path": "/status/volumesInUse", "value": ["volume"]}],
        [{"op": "add", "path": "/metadata/labels", "value": {"example.com/pool": "trusted"}}],
        [{"op": "add", "path": "/metadata/annotations", "value": {"example.com/trusted": "true"}}],
        [{"op": "add", "path": "/metadata/finalizers", "value": ["example.com/held"]}],
    ],
    ids=lambda patch: patch[0]["path"],
)
def test_of_its_own_node_it_may_say_nothing_else(guarded: Guarded, patch: Patch) -> None:
    assert MORE in guarded.refusal(HERE, patch, kubeconfig=guarded.pair.token_of(HERE))


def test_others_are_not_concerned(guarded: Guarded) -> None:
    """The kubelet and the controllers write the same status."""
    patch = [{"op": "add", "path": "/status/capacity", "value": {"pods": "110"}}]
    guarded.patch(THERE, patch, kubeconfig=guarded.pair.plane.admin_kubeconfig)
    assert guarded.pair.plane.read(f"/api/v1/nodes/{THERE}")["status"]["capacity"]["pods"] == "110"


def test_whether_the_network_is_available_it_may_say_only_where_the_chart_is_told_so(guarded: Guarded) -> None:
    """The last one, as it changes the policy."""
    own = guarded.pair.token_of(HERE)
    patch = plan_conditions(guarded.documents(HERE), [describe_available()], now=datetime.now(UTC))
    assert MORE in guarded.refusal(HERE, patch, kubeconfig=own)
    apply_own_node_policies(guarded.pair.plane, {"coild": {"setNetworkUnavailable": True}})

    def is_allowed() -> bool:
        try:
            guarded.patch(HERE, patch, kubeconfig=own)
        except ApiError:
            return False
        return True

    wait_until(is_allowed, what="the API server enforces the policy that allows it")
    assert guarded.conditions(HERE)[NETWORK_UNAVAILABLE] == "False"
