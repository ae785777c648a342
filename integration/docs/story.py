"""In which order the pages' blocks are executed on a cluster, and what each is to show. Pure.

A chapter begins where the one before has ended; the acts between chapters are the tests' (`test_execution`). The story
begins on a cluster that deploy.sh has made, with route sync as in docker-compose.kind.yaml, and ends with an
installation by hand, on the cluster that the pages have emptied, with BIRD.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

NODE: Final = "node-1"
TENANT: Final = "shop"
"""The namespace, its pool, and the beginning of its pods' names."""
STRAY: Final = "stray"
"""A pod of the namespace `default` that names an Egress which does not exist."""

VARIABLES: Final[Mapping[str, str]] = {
    "NODE": NODE,
    "NAMESPACE": TENANT,
    "POD": f"{TENANT}-{NODE}",
    "POOL": TENANT,
    "USER": "alice",
}
"""What the blocks name with a dollar sign. VALUES, FILE, FOLDER and VERSION are the stage's."""


@dataclass(frozen=True, slots=True)
class Step:
    """A block, by name, and regular expressions that its output has, `^` being the beginning of a line.

    A block that only looks, at what is about to happen, `waits`: it is repeated until it shows it. `code` is what the
    block's last command ends with where that is its answer.
    """

    block: str
    shows: Sequence[str] = ()
    waits: bool = False
    code: int = 0
    variables: Mapping[str, str] = field(default_factory=dict)

    def missing(self, printed: str) -> list[str]:
        """What of `shows` is not there."""
        return [pattern for pattern in self.shows if re.search(pattern, printed, re.MULTILINE) is None]


POOLS: Final = (
    Step("pool-of-samples", ["addresspool.*/default unchanged"]),
    Step("shop-pool", ["addresspool.*/shop unchanged", "namespace/shop unchanged"]),
    Step("see-pools", [r"^NAME .*FILL", r"^shop .*HasRoom", r"^default-\d", "Reason: +GivesBlocks"], waits=True),
    Step("wait-for-room", ["addresspool.*/default condition met"]),
    Step("grow-shop-pool", ["addresspool.*/shop configured"]),
    Step("see-blocks", [rf"^shop-\d .*{NODE}", r"^default-\d"]),
    Step("ip-manager", [f"{TENANT}-{NODE}", r"10\.101\.0\.\d"]),
    Step("ipam-show-pod", [rf"^10\.101\.0\.\d+ .*shop-\d+ +allocated +{TENANT}/{TENANT}-{NODE} +20"]),
    Step(
        "trace", [r"^2 +node node-1 +sends it out by ", r"^Delivered: 192\.0\.2\.1 sees 10\.101\.0\.\d+ as source\.$"]
    ),
    Step("ipam-check", ["^Nothing is wrong, by the objects and 2 nodes$"]),
    Step("sysdump", [r"/sysdump\.zip$"]),
    Step("node-dump", ['"inspection":{"node":"node-[0-9]+"', '"troubles":\\[\\]']),
    Step("see-routes", [r"^2000:.*lookup 116", r"^10\.101\.0\.\d+ dev veth", r"^10\.101\.0\.\d+/29 dev lo", "^fd10:"]),
    Step("synced-routes", [r"^10\.101\.0\.\d+/29 via 198\.18\."], waits=True),
)
"""pools.md, and the part of routing.md that is about a flat network."""

EGRESS: Final = (
    Step("egress", ["namespace/internet created", "egress.*/nat created"]),
    Step("see-egress", [r"^egress\S+/nat ", r"^deployment.apps/nat ", r"^service/nat ", "^pod/nat-"], waits=True),
    Step("egress-events", [f"EgressNotFound +pod/{STRAY}"], waits=True),
    Step("egress-of-pod", ["EgressNotFound", "^internet +egress"], variables={"NAMESPACE": "default", "POD": STRAY}),
    Step("router-pods", [r"^internet +nat-\S+ +\d/1 +Running", r"^\[pod/nat-"], waits=True),
    Step("connections-of-a-router", ["flow entries have been shown"]),
    Step("allow-router-pods", ["namespace/internet labeled"], variables={"NAMESPACE": "internet"}),
    Step("scale-egress", ["egress.*/nat scaled", "deployment.apps/nat restarted"]),
    Step("describe-egress", ["^Name: +nat", "Replicas: +3", "egress-controller.*1/1"], waits=True),
    Step("delete-egress", ['"nat" deleted']),
)
"""egress-nat.md and what troubleshooting.md has of it, with one pod that is written wrongly."""

TROUBLESHOOTING: Final = (
    Step("begin", ["^Coil is fine", "^Nothing is wrong", r"^Delivered: 192\.0\.2\.1 sees 10\.101\.0\.\d+ as source"]),
    Step("warnings", [f"EgressNotFound +pod/{STRAY}", r"^coild-\S+ +1/1"]),
    Step("log-of-a-node", [r"^coild-\S+ +1/1", r"^\[pod/coild-\S+ {"]),
    Step("readiness", ['"status": ?"ok"']),
    Step("describe-pod", [f"^Name: +{TENANT}-{NODE}", r"^IP: +10\.101\.0\."]),
    Step("coild-pods", [r"^coild-\S+ +1/1", "Desired Number of Nodes Scheduled: 2"]),
    Step("node-conditions", [f"^Name: +{NODE}", r"Ready +True.*kubelet is posting"]),
    Step("pools-and-namespace", ["^shop ", "coil.cybozu.com/pool: shop"]),
    Step("fill", ["^shop .*HasRoom", rf"^shop-\d .*{NODE}"]),
    Step("ipam-controller", [r"^coil-ipam-controller-\S+ +1/1", r"^coil-ipam-controller +\S+_\S+ "]),
    Step("coild-can-watch", [r"^\[pod/coild-", "^yes$"]),
    Step("cni-configuration", [r"^10-coil\.conflist$"]),
    Step(
        "coild-metrics",
        [
            *("^coil_node_address_wait_seconds", "^coil_cni_operation_duration_seconds"),
            "^coil_cni_refused_operations_total",
        ],
    ),
    Step("pool-conditions", ["Reason: +GivesBlocks", "Reason: +HasRoom"]),
    Step("occupied-pools", ["default +<none>"]),
    Step("cluster-networks", [r"^198\.18\."]),
    Step("blocks-of-pool", [rf"^shop-\d .*{NODE}"]),
    Step("describe-blocks", [r"^Name: +shop-\d", "coil.cybozu.com/pool=shop"]),
    Step("nodes-and-blocks", [f"^{NODE} +Ready", rf"^shop-\d .*{NODE}"]),
    Step("routes", [r"^10\.101\.0\.\d+/29 dev lo", r"^10\.101\.0\.\d+/29 via"]),
    Step("forward-chains", ["hook forward", "^-P FORWARD"]),
    Step("sources", [r"packets \d+ bytes"]),
    Step("route-sync-metrics", ["^coil_router_troubled_networks"]),
    Step("controllers", [r"^coil-ipam-controller-\S+ +1/1", r"^coil-ipam-controller +\S+:9443", "^coil-egress-con"]),
)
"""The rest of troubleshooting.md, and isolation.md, on a cluster that is well."""

GATEWAY: Final = (
    Step("upgrade-to-eip", ["has been upgraded", "successfully rolled out"]),
    Step("pod-and-service-networks", [r"^10\.101\.", r"^198\.19\."], waits=True),
    Step("add-cluster-networks", ["configmap/coil-cluster-networks patched"]),
    Step("label-gateway-node", [f"node/{NODE} labeled"]),
    Step("egress-gateway", ["egressgateway.*/office created"]),
    Step("allow-namespace", ["namespace/shop labeled"]),
    Step("policy", ["egressgatewaypolicy.*/payments created"]),
    Step("policies", ["/payments-fixed created", "/mail created"]),
    Step("serve-egress-policies", ["has been upgraded", "successfully rolled out"]),
    Step("cluster-policy", ["egressclusterpolicy.*/updates created"]),
    Step(
        "see-cluster-policies", [r"^updates +office +10\.6\.0\.\d+ +.*True", "^shop +egcp-updates +office"], waits=True
    ),
    Step(
        "see-gateways",
        [
            r"^egressgateway\S+/office .*True",
            rf"^shop +payments +office +10\.6\.0\.\d+ .*{NODE} +True .*Placed",
            rf"^shop +payments-fixed +office +10\.6\.0\.12 .*{NODE} +True .*Placed",
            rf"^shop +mail +office .*{NODE} +True .*Placed",
        ],
        waits=True,
    ),
    Step("prefer-node", ["egressgateway.*/office patched"]),
    Step("see-eips", [r"^egressgateway\S+/office ", rf"^egresstunnel\S+/{NODE} .*Ready", r"^\[pod/coil-egress-agent-"]),
    Step("tunnel-conditions", [rf"^{NODE} +.*no packet filter of others"]),
    Step("see-tunnels", [rf"^{NODE} .*Ready", rf"^\S+{NODE} +{NODE} "]),
    Step("pods-in-unknown-networks", [r"^payments: $"]),
    Step("eip-link", [r"arp_ignore = 0", r"^1700:"]),
    Step("allow-podsubnet", ["rolebinding.*/podsubnet created"]),
    Step("unlabel-gateway-node", [f"node/{NODE} (un)?labeled"]),
    Step("see-gateways", [r"^egressgateway\S+/office .*False", "^shop +payments .*NoNode"], waits=True),
    Step("delete-gateway", ['"updates" deleted', '"payments" deleted', '"office" deleted']),
)
"""eip-gateway.md and what troubleshooting.md has of it."""

UPGRADE: Final = (
    Step("upgrade", ["configured|unchanged", "has been upgraded", "successfully rolled out", "^Phase: +Succeeded"]),
    Step("rollback", ["Rollback was a success", "successfully rolled out"]),
    Step("former-pools", [r"^POOL +BITS +IPV4 +IPV6$", r"^default +\d+ +10\.100\."]),
    Step("after-moving", [r"^\[pod/coild-", r"^shop-\d"]),
    Step("delete-pool", ['"shop" deleted', "Reason: +Deleting"]),
)
"""upgrade.md while pods run."""

LEAVING: Final = (
    Step("clean-up", ["has been upgraded", "successfully rolled out"]),
    Step("uninstall", ['"coil" uninstalled']),
    Step("delete-sources", ["counter spoofed"]),
    Step("delete-kinds", ['"addresspools.coil.cybozu.com" deleted', '"coil-eip-leases" deleted']),
)
"""upgrade.md to its end."""

FINALIZERS: Final = (
    Step("block-finalizer", ["addressblock.*patched"]),
    Step("pool-finalizer", ["addresspool.*patched"]),
)
"""For one block and one pool each: they are executed for every one that is left."""

KUSTOMIZE: Final = (
    Step("kustomization", ["^kind: CustomResourceDefinition$", "default-container: coild$"]),
    Step("apply-kustomization", ["daemonset.apps/coild serverside-applied", "successfully rolled out"]),
)
"""install.md without a release of Helm's, on the cluster that is empty by now, and is empty again afterwards."""

INSTALLING: Final = (
    Step("install", ["^STATUS: deployed"]),
    Step("allow-pods", ["namespace/shop labeled"]),
    Step(
        "see-the-programs", ["coil-ipam-controller.* rolled out", "coil-egress-con.* rolled out", "coild.* rolled out"]
    ),
    Step("default-pool", ["addresspool.*/default created"]),
    Step("wait-for-pool", ["condition met", "^default .*True"]),
    Step("helm-test", ["^Phase: +Succeeded", r" saw \S*10\.100\."]),
    Step(
        "status",
        ["^Coil is fine", r"^coild +\S+ +2/2 +2 +\d+s", r"^coil-ipam\S+ +.* \d+s +364 days", "^default +yes +HasRoom "],
    ),
    Step("status-document", [r'^ +"verdict": "fine",$']),
    Step("allow-viewer", ["clusterrolebinding.*/coil-viewer created"]),
    Step("allow-node-reader", ["rolebinding.*/coil-node-reader created"]),
    Step("bird", ["Established", r"^10\.100\.0\.\d+/27"], waits=True),
    # Last, as the API server, which is behind a Service, answers pods by the routes that it has from BIRD.
    Step(
        "connectivity",
        [
            *(r"^ok +a pod on another node, TCP IPv4: seen as 10\.100\.", r"^ok +a Service, UDP IPv6: seen as fd"),
            r"^skipped +outside of the cluster",
            r"^\d+ checks, 0 failed\.$",
        ],
    ),
    # By then each node has had pods.
    Step("ipam-show", [r"^default +10\.100\.0\.0/16", rf"^default-\d+ +default +{NODE} +used"]),
)
"""install.md from its beginning, and routing.md with BIRD."""

CHAPTERS: Final = (POOLS, EGRESS, TROUBLESHOOTING, GATEWAY, UPGRADE, LEAVING, FINALIZERS, KUSTOMIZE, INSTALLING)

FROM_COIL_V2: Final = (
    Step("check-coil-v2", ["DaemonSet kube-system/coild"], code=3),
    Step("see-coil-v2", ["^daemonset.apps/coild ", "^mutatingwebhookconfiguration.*/coilv2-"]),
    Step("delete-coil-v2", ['daemonset.apps "coild" deleted', 'clusterrole.* "coild" deleted']),
    Step("install-after-coil-v2", ["addressblocks.* configured", "^STATUS: deployed"]),
)
BACK_TO_COIL_V2: Final = (
    Step("leave-for-coil-v2", ['"coil" uninstalled']),
    Step("delete-tables-for-coil-v2", ["^$"]),
)
"""upgrade.md where the Go programs serve a node, on an API server without kubelets (integration/apiserver)."""

FROM_EGRESSGATEWAY: Final = (
    Step("check-egressgateway", ["^Must be mended first", "DaemonSet kube-system/egressgateway-agent"], code=4),
    Step("check-egressgateway-manifests", ["^Must be mended first", "podSubnet"], code=4),
    Step("convert-egressgateway-manifests", ['^kind: "EgressGateway"$', '^kind: "EgressPolicy"$']),
    Step("save-egressgateway", ["^$"]),
    Step(
        "uninstall-egressgateway",
        ['"egressgateway" uninstalled', rf"^\S+/{NODE} ", r"^\S+/office ", r"^shop +\S+/web "],
    ),
    Step(
        "apply-saved-policies", ["egressgateway.*/office serverside-applied", "egresspolicy.*/web serverside-applied"]
    ),
    Step(
        "delete-what-egressgateway-left",
        [
            *("egressgateway.*/office patched", f"egresstunnel.*/{NODE} patched", f'"{NODE}" deleted'),
            *("egressendpointslice.* deleted", '"egressclusterendpointslices.egressgateway.spidernet.io" deleted'),
        ],
    ),
    Step("replace-kinds-of-egressgateway", ["egresspolicies.* serverside-applied", "^To know"]),
    Step("install-after-egressgateway", ["^STATUS: deployed"]),
    Step(
        "see-egressgateway-policies",
        [
            *(r"^shop +\S+/web +office +203\.0\.113\.4 ", r"^shop +\S+/free +office +203\.0\.113\.6 "),
            *(r"^shop +\S+/lost +office +203\.0\.113\.5 ", r"^ +\S+/all +office +203\.0\.113\.4 "),
        ],
        waits=True,
    ),
)
"""upgrade.md where egressgateway's release is installed and has served policies, on an API server without kubelets."""

BESIDE: Final = (FROM_COIL_V2, BACK_TO_COIL_V2, FROM_EGRESSGATEWAY)
"""Executed elsewhere than the chapters."""
