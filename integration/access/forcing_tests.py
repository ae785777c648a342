"""Which test forces the use of which right: it cannot pass unless a program has used the right by then.

What else happens to use a right depends on how fast the machine is. So only this test's run says that nobody needs the
right, and if the right is taken away, this test fails, or the end of its module, which finds what was refused.

A test is named by its node ID, without parameters unless only one case forces the right. A right that no call can show
(`integration.access.exemption.UNSEEN`) is here as well if some test fails without it.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from integration.access.exemption import COIL, COORDINATION, EIP, RBAC
from integration.access.right import RightKey
from integration.helm.chart import NAMESPACE

_API = "integration/apiserver"
_LISTS = f"{_API}/test_list_in_pages.py"
_ADMISSION = f"{_API}/test_admission.py"
_COILD_FAILURE = f"{_API}/test_coild_failure.py"
_EGRESS = f"{_API}/test_egress_controller.py"
_EGRESS_ADMISSION = f"{_API}/test_egress_admission.py"
_EGRESS_CLIENT = f"{_API}/test_egress_client.py"
_EIP_ADMISSION = f"{_API}/test_eip_admission.py"
_EGRESS_POLICIES = f"{_API}/test_egress_policies.py"
_GATEWAY_NODE = f"{_API}/test_gateway_node.py"
_IPAM = f"{_API}/test_ipam_controller.py"
_AWS_NODES = "integration/aws_nodes"
_RAVEN = "integration/neutron/test_raven.py"
_LOAD_BALANCERS = "integration/neutron/test_services.py::test_a_service_from_its_beginning_to_its_end"
_RAVEN_LISTS = "integration/neutron/test_list_in_pages.py::test_coil_raven"

_FOREIGN_NETWORKS = f"{_EGRESS}::test_networks_of_other_programs_are_found"
_MISSING_EGRESS = f"{_EGRESS_CLIENT}::test_a_pod_whose_egress_is_missing_or_invalid_waits_until_it_is_mended"
_TOLD_CLIENTS = f"{_EGRESS_CLIENT}::test_router_pods_are_told_of_clients_while_these_are_attached"
_PATCHED_EVENT = f"{_API}/test_event_recorder.py::test_an_event_that_is_repeated_is_patched"
_HOOKS_OF_IPAM = f"{_ADMISSION}::test_an_overwritten_bundle_is_repaired"
_HOOKS_OF_EGRESS = f"{_EGRESS_ADMISSION}::test_a_refusal_as_kubectl_prints_it"
_ROUTERS = f"{_EGRESS}::test_an_egress_becomes_router_pods_behind_a_service"
_REPAIR = f"{_EGRESS}::test_what_is_ours_is_put_right_again"
_ACCOUNTS = f"{_EGRESS}::test_accounts_and_bindings_come_with_the_first_egress_and_go_with_the_last"
_CLUSTER_BINDING = f"{_EGRESS}::test_subjects_of_the_binding_for_former_router_pods_follow_the_namespaces"
_BUDGET = f"{_EGRESS}::test_a_disruption_budget_comes_changes_and_goes"
_TUNNEL = f"{_GATEWAY_NODE}::test_a_tunnel_comes_and_goes_with_its_node"
_POLICY = f"{_GATEWAY_NODE}::test_a_policys_address_and_pods_are_written_down"
_SERVED = f"{_EGRESS_POLICIES}::test_policies_of_egressgateway_are_served_as_they_are_written"
_FOLLOWED = f"{_EGRESS_POLICIES}::test_a_change_and_a_deletion_are_followed"
_CLUSTER_INFO = f"{_EGRESS_POLICIES}::test_the_cluster_info_adds_networks_and_says_which_were_found"
_CLUSTER_WIDE = f"{_EGRESS_POLICIES}::test_a_cluster_policy_has_one_address_in_all_its_namespaces"
_REVOKED = f"{_GATEWAY_NODE}::test_the_lease_of_a_silent_node_is_revoked"
_BLOCK = f"{_IPAM}::test_a_request_gets_a_block"
_COLLECTED = f"{_IPAM}::test_what_a_deleted_node_leaves_is_collected"
_PORTS = f"{_RAVEN}::test_pods_get_ports_on_their_namespaces_networks_and_all_of_it_goes"
_PLANNED_MOVE = "integration/eip/test_change.py::test_a_planned_move_has_one_holder_at_a_time"
_EIP_LEASES = "coil-eip-leases"

_ADMISSION_GROUP = "admissionregistration.k8s.io"


def _keys(account: str, role: str, tests: Mapping[str, str]) -> Iterator[tuple[RightKey, str]]:
    """`tests` by "verb, verb resource.group", as `str` of a right has it."""
    for what, test in tests.items():
        verbs, _, kind = what.rpartition(" ")
        resource, _, group = kind.partition(".")
        for verb in verbs.split(", "):
            yield (account, role, verb, group, resource), test


def _named(*parts: Iterator[tuple[RightKey, str]]) -> dict[RightKey, str]:
    """All of them; raises ValueError for a right that is there twice."""
    pairs = [pair for part in parts for pair in part]
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a right has two tests")
    return found


FORCING_TESTS: Final[Mapping[RightKey, str]] = _named(
    _keys(
        "coild",
        "ClusterRole coild",
        {
            "get nodes": f"{_API}/test_coild.py::test_a_block_is_this_nodes_and_exported",
            "get namespaces": f"{_COILD_FAILURE}::test_a_namespace_that_does_not_exist_is_named",
            "list, watch namespaces": f"{_LISTS}::test_coild",
            f"get addresspools.{COIL}": f"{_API}/test_no_stall.py::test_all_blocks_are_asked_for_before_one_is_given",
            f"list, watch addressblocks.{COIL}": f"{_LISTS}::test_coild",
            f"patch, delete addressblocks.{COIL}": (
                f"{_COILD_FAILURE}::test_after_a_kill_pods_keep_addresses_and_blocks_without_pods_go"
            ),
            f"list, watch blockrequests.{COIL}": f"{_LISTS}::test_coild",
            f"create blockrequests.{COIL}": f"{_API}/test_coild.py::test_a_block_is_this_nodes_and_exported",
            f"delete blockrequests.{COIL}": (
                f"{_COILD_FAILURE}::test_after_a_kill_pods_keep_addresses_and_blocks_without_pods_go"
            ),
            "get pods": f"{_EGRESS_CLIENT}::test_a_pod_that_the_api_server_does_not_know_waits",
            "list, watch pods": f"{_LISTS}::test_coild",
            "get services": _MISSING_EGRESS,
            "list, watch services": f"{_LISTS}::test_coild",
            f"get egresses.{COIL}": _MISSING_EGRESS,
            f"list, watch egresses.{COIL}": f"{_LISTS}::test_coild",
            "list, watch endpointslices.discovery.k8s.io": f"{_LISTS}::test_coild",
            f"list, watch egressclientslices.{COIL}": f"{_LISTS}::test_coild",
            f"create, patch, delete egressclientslices.{COIL}": _TOLD_CLIENTS,
            "create events": _MISSING_EGRESS,
            "patch events": f"{_PATCHED_EVENT}[coild]",
        },
    ),
    _keys(
        "coild",
        f"Role coild-cluster-networks in {NAMESPACE}",
        {"list, watch configmaps": f"{_LISTS}::test_coild"},
    ),
    _keys(
        "coild",
        "ClusterRole coild-nodes",
        {
            "list, watch nodes": f"{_LISTS}::test_coild",
            f"list, watch addresspools.{COIL}": f"{_LISTS}::test_coild",
        },
    ),
    _keys(
        "coild",
        "ClusterRole coild-node-condition",
        {"patch nodes/status": f"{_API}/test_own_node.py::test_its_own_node_has_the_conditions_that_coild_says"},
    ),
    _keys(
        "coil-test-nodes",
        "ClusterRole coil-test-nodes",
        {"get, list nodes": f"{_API}/test_check_nodes.py::test_each_fault_is_told_with_its_node"},
    ),
    _keys(
        "coil-egress-node",
        "ClusterRole coil-egress-node",
        {
            f"list, watch egressgateways.{EIP}": f"{_LISTS}::test_the_agent_of_a_node",
            f"list, watch egressgatewaypolicies.{EIP}": f"{_LISTS}::test_the_agent_of_a_node",
            f"list, watch egressendpointslices.{EIP}": f"{_LISTS}::test_the_agent_of_a_node",
            f"list, watch egresstunnels.{EIP}": f"{_LISTS}::test_the_agent_of_a_node",
            f"patch egresstunnels/status.{EIP}": _PLANNED_MOVE,
            "list, watch nodes": f"{_LISTS}::test_the_agent_of_a_node",
            "list, watch pods": f"{_LISTS}::test_the_agent_of_a_node",
            f"list, watch addresspools.{COIL}": f"{_LISTS}::test_the_agent_of_a_node",
        },
    ),
    _keys(
        "coil-egress-node",
        f"Role coild-cluster-networks in {NAMESPACE}",
        {"list, watch configmaps": f"{_LISTS}::test_the_agent_of_a_node"},
    ),
    _keys(
        "coil-egress-node",
        f"Role coil-egress-node in {_EIP_LEASES}",
        {
            f"get, create leases.{COORDINATION}": _PLANNED_MOVE,
            f"update leases.{COORDINATION}": "integration/eip/test_change.py::test_a_gateway_node_renews_its_lease",
        },
    ),
    _keys(
        "coil-egress-controller",
        "Role coil-egress-controller-cluster-networks in kube-system",
        {"list, watch configmaps": _FOREIGN_NETWORKS},
    ),
    _keys(
        "coil-egress-controller",
        "ClusterRole coil-egress-controller",
        {
            f"list, watch egresses.{COIL}": f"{_LISTS}::test_the_egress_controller",
            f"patch egresses/status.{COIL}": f"{_EGRESS}::test_scaling_by_hand_and_by_an_autoscaler",
            f"update egresses/finalizers.{COIL}": _ROUTERS,
            "list, watch deployments.apps": f"{_LISTS}::test_the_egress_controller",
            "create deployments.apps": _ROUTERS,
            "get, update deployments.apps": _REPAIR,
            "list, watch services": f"{_LISTS}::test_the_egress_controller",
            "create services": _ROUTERS,
            "get, update services": _REPAIR,
            "list, watch poddisruptionbudgets.policy": f"{_LISTS}::test_the_egress_controller",
            "get, create, update, delete poddisruptionbudgets.policy": _BUDGET,
            "list, watch serviceaccounts": f"{_LISTS}::test_the_egress_controller",
            "create, delete serviceaccounts": _ACCOUNTS,
            f"list, watch rolebindings.{RBAC}": f"{_LISTS}::test_the_egress_controller",
            f"create, delete rolebindings.{RBAC}": _ACCOUNTS,
            f"list, watch clusterrolebindings.{RBAC}": f"{_LISTS}::test_the_egress_controller",
            f"patch clusterrolebindings.{RBAC}": _CLUSTER_BINDING,
            f"list, watch egressclientslices.{COIL}": f"{_LISTS}::test_the_egress_controller",
            f"create, patch, delete egressclientslices.{COIL}": (
                f"{_EGRESS}::test_clients_that_no_coild_tells_of_are_told_to_router_pods"
            ),
            "list, watch nodes": f"{_LISTS}::test_the_egress_controller",
            f"list, watch addresspools.{COIL}": f"{_LISTS}::test_the_egress_controller",
            "list, watch servicecidrs.networking.k8s.io": f"{_LISTS}::test_the_egress_controller",
            "list, watch ippools.crd.projectcalico.org": _FOREIGN_NETWORKS,
            "list, watch ciliumnodes.cilium.io": _FOREIGN_NETWORKS,
            "get nodes": _TUNNEL,
            "list, watch namespaces": f"{_LISTS}::test_the_egress_controller",
            "get namespaces": f"{_EIP_ADMISSION}::test_a_tenant_uses_only_gateways_that_let_its_namespace_in",
            "list, watch pods": f"{_LISTS}::test_the_egress_controller",
            f"list, watch egressgateways.{EIP}": f"{_LISTS}::test_the_egress_controller",
            f"get egressgateways.{EIP}": (
                f"{_EIP_ADMISSION}::test_a_tenant_uses_only_gateways_that_let_its_namespace_in"
            ),
            f"update egressgateways/status.{EIP}": _POLICY,
            f"list, watch egressgatewaypolicies.{EIP}": f"{_LISTS}::test_the_egress_controller",
            f"update egressgatewaypolicies/status.{EIP}": _POLICY,
            f"list, watch egresspolicies.{EIP}": f"{_LISTS}::test_the_egress_controller",
            f"list, watch egressclusterpolicies.{EIP}": f"{_LISTS}::test_the_egress_controller",
            f"list, watch egressclusterinfos.{EIP}": f"{_LISTS}::test_the_egress_controller",
            f"update egresspolicies/status.{EIP}": _SERVED,
            f"update egressclusterinfos/status.{EIP}": _CLUSTER_INFO,
            f"get egressclusterpolicies.{EIP}": _CLUSTER_WIDE,
            f"update egressclusterpolicies/status.{EIP}": _CLUSTER_WIDE,
            f"create egressgatewaypolicies.{EIP}": _SERVED,
            f"update, delete egressgatewaypolicies.{EIP}": _FOLLOWED,
            f"update egressgatewaypolicies/finalizers.{EIP}": _POLICY,
            f"list, watch egresstunnels.{EIP}": f"{_LISTS}::test_the_egress_controller",
            f"create, delete egresstunnels.{EIP}": _TUNNEL,
            f"patch egresstunnels/status.{EIP}": _TUNNEL,
            f"list, watch egressendpointslices.{EIP}": f"{_LISTS}::test_the_egress_controller",
            f"create, update, delete egressendpointslices.{EIP}": _POLICY,
            "create subjectaccessreviews.authorization.k8s.io": (
                f"{_EIP_ADMISSION}::test_to_select_pods_by_address_takes_a_right"
            ),
            "create events": f"{_EGRESS}::test_what_is_not_ours_is_not_touched",
            "patch events": f"{_PATCHED_EVENT}[coil-egress-controller]",
            f"get, patch mutatingwebhookconfigurations.{_ADMISSION_GROUP}": _HOOKS_OF_EGRESS,
            f"get, patch validatingwebhookconfigurations.{_ADMISSION_GROUP}": _HOOKS_OF_EGRESS,
        },
    ),
    _keys(
        "coil-egress-controller",
        f"Role coil-egress-controller in {NAMESPACE}",
        {
            f"create leases.{COORDINATION}": _ROUTERS,
            f"get, update leases.{COORDINATION}": f"{_EGRESS}::test_another_replica_takes_over",
            "create, get secrets": _HOOKS_OF_EGRESS,
            "update secrets": f"{_EGRESS_ADMISSION}::test_a_spoilt_secret_is_mended",
            "get pods": (f"{_API}/test_egress_setting.py::test_router_pods_have_the_image_of_the_controllers_own_pod"),
            "list, watch configmaps": f"{_LISTS}::test_the_egress_controller",
            "patch configmaps": f"{_EGRESS}::test_nodes_and_router_pods_are_told_the_clusters_networks",
        },
    ),
    _keys(
        "coil-egress-controller",
        f"Role coil-egress-controller in {_EIP_LEASES}",
        {
            f"list, watch leases.{COORDINATION}": f"{_LISTS}::test_the_egress_controller",
            f"get, update leases.{COORDINATION}": _REVOKED,
            f"create leases.{COORDINATION}": (
                f"{_GATEWAY_NODE}::test_a_lease_that_is_missing_is_made_so_that_its_term_is_over"
            ),
        },
    ),
    _keys(
        "coil-egress",
        "ClusterRole coil-egress",
        {
            f"list, watch egresses.{COIL}": f"{_LISTS}::test_the_agent_of_a_router_pod",
            f"list, watch egressclientslices.{COIL}": f"{_LISTS}::test_the_agent_of_a_router_pod",
        },
    ),
    _keys(
        "coil-ipam-controller",
        "ClusterRole coil-ipam-controller",
        {
            f"list, watch addresspools.{COIL}": f"{_LISTS}::test_the_ipam_controller",
            f"get addresspools.{COIL}": f"{_IPAM}::test_refusals_say_why",
            f"patch addresspools.{COIL}": f"{_IPAM}::test_a_pool_goes_after_its_last_block",
            f"patch addresspools/status.{COIL}": (
                f"{_API}/test_pool_status.py::test_a_subnet_that_is_appended_counts_at_once"
            ),
            f"update addresspools/finalizers.{COIL}": _BLOCK,
            f"list, watch addressblocks.{COIL}": f"{_LISTS}::test_the_ipam_controller",
            f"create addressblocks.{COIL}": _BLOCK,
            f"get, patch, delete addressblocks.{COIL}": _COLLECTED,
            f"list, watch blockrequests.{COIL}": f"{_LISTS}::test_the_ipam_controller",
            f"patch blockrequests/status.{COIL}": _BLOCK,
            f"delete blockrequests.{COIL}": f"{_IPAM}::test_a_node_that_went_while_no_controller_ran_is_noticed",
            "list, watch nodes": f"{_LISTS}::test_the_ipam_controller",
            "get nodes": _COLLECTED,
            "list, watch servicecidrs.networking.k8s.io": f"{_LISTS}::test_the_ipam_controller",
            f"get, patch mutatingwebhookconfigurations.{_ADMISSION_GROUP}": _HOOKS_OF_IPAM,
            f"get, patch validatingwebhookconfigurations.{_ADMISSION_GROUP}": _HOOKS_OF_IPAM,
        },
    ),
    _keys(
        "coil-ipam-controller",
        f"Role coil-ipam-controller in {NAMESPACE}",
        {
            f"create leases.{COORDINATION}": _BLOCK,
            f"get, update leases.{COORDINATION}": f"{_IPAM}::test_a_standby_is_ready_and_takes_over",
            "create, get secrets": _HOOKS_OF_IPAM,
            "update secrets": f"{_ADMISSION}::test_a_spoilt_secret_is_mended",
        },
    ),
    _keys(
        "coil-raven",
        "ClusterRole coil-raven",
        {
            "get, patch namespaces": _PORTS,
            "list, watch namespaces": _RAVEN_LISTS,
            "patch pods": _PORTS,
            "list, watch pods": _RAVEN_LISTS,
            "list, watch nodes": _RAVEN_LISTS,
            "list, watch services": _RAVEN_LISTS,
            "list, watch endpointslices.discovery.k8s.io": _RAVEN_LISTS,
            "patch services": f"{_LOAD_BALANCERS}[amphora]",
            "patch services/status": f"{_LOAD_BALANCERS}[amphora]",
            "create events": f"{_RAVEN}::test_a_port_that_no_agent_binds_is_told_and_bound_when_the_node_has_its_name",
            "patch events": f"{_PATCHED_EVENT}[coil-raven]",
        },
    ),
    _keys(
        "coil-raven",
        f"Role coil-raven in {NAMESPACE}",
        {
            f"create leases.{COORDINATION}": _PORTS,
            f"get, update leases.{COORDINATION}": (
                f"{_RAVEN}::test_one_that_is_killed_goes_on_and_one_that_is_restarted_writes_nothing"
            ),
        },
    ),
    _keys(
        "coil-ipam-controller",
        "Role coil-ipam-controller-events in default",
        {
            "create events": f"{_API}/test_collection.py::test_a_dead_node_that_holds_blocks_is_reported_once",
            "patch events": f"{_PATCHED_EVENT}[coil-ipam-controller]",
            "list, watch services": f"{_LISTS}::test_the_ipam_controller",
        },
    ),
)

_NO_REFUSAL = f"{_AWS_NODES}/test_release.py::test_no_program_was_refused_a_right_or_met_what_it_was_not_made_for"

FORCING_TESTS_ON_INSTANCES: Final[Mapping[RightKey, str]] = _named(
    _keys(
        "coild",
        "ClusterRole coild",
        {
            "get nodes": f"{_AWS_NODES}/test_pods.py::test_nodes_say_that_pods_can_get_addresses",
            "list, watch namespaces": _NO_REFUSAL,
            "list, watch pods": _NO_REFUSAL,
            "list, watch services": _NO_REFUSAL,
            f"list, watch egresses.{COIL}": _NO_REFUSAL,
            "list, watch endpointslices.discovery.k8s.io": _NO_REFUSAL,
            f"list, watch egressclientslices.{COIL}": _NO_REFUSAL,
            "create events": f"{_AWS_NODES}/test_release.py::test_a_pod_for_which_no_address_is_left_is_told_so",
        },
    ),
    _keys(
        "coild",
        "ClusterRole coild-node-condition",
        {"patch nodes/status": f"{_AWS_NODES}/test_pods.py::test_nodes_say_that_pods_can_get_addresses"},
    ),
    _keys("coild", f"Role coild-cluster-networks in {NAMESPACE}", {"list, watch configmaps": _NO_REFUSAL}),
    # These are not brought about on instances; whence a pod's address comes makes no difference to them.
    (
        (key, test)
        for key, test in FORCING_TESTS.items()
        if key[:2] == ("coild", "ClusterRole coild")
        and key[2:]
        in {
            *(("get", "", "pods"), ("get", "", "services"), ("get", "", "namespaces")),
            *(("get", COIL, "egresses"), ("patch", "", "events")),
            *((verb, COIL, "egressclientslices") for verb in ("create", "patch", "delete")),
        }
    ),
)
"""The same for coild on the nodes of the profile aws-eni, which has nothing else."""
