"""The Service in front of an Egress's router pods: clients send their tunnels to its addresses.

Both families are asked for, and the API server gives those that the cluster has; one that does not know how to (before
1.20, or with its feature off) drops the wish. The selector, the port and the affinity of sessions are ours, as is the
type, because clients need a cluster address; whatever else is set on the Service stays.
"""

from typing import Any

from coil.crd.egress import Egress
from coil.egress.overlay import overlay_metadata
from coil.egress.ownership import owner_reference
from coil.egress.router_label import router_labels

Document = dict[str, Any]

BY_CLIENT = "ClientIP"


def render_service(egress: Egress, port: int) -> Document:
    """As it is created; `port` is that of the tunnels."""
    labels = router_labels(egress.metadata.name)
    spec: Document = {
        "type": "ClusterIP",
        "ipFamilyPolicy": "PreferDualStack",
        "selector": labels,
        "ports": [{"name": "fou", "port": port, "targetPort": port, "protocol": "UDP"}],
        "sessionAffinity": egress.spec.session_affinity,
    }
    # The API server refuses it with another affinity.
    if egress.spec.session_affinity == BY_CLIENT and egress.spec.session_affinity_config:
        spec["sessionAffinityConfig"] = egress.spec.session_affinity_config
    return {
        "metadata": {
            "name": egress.metadata.name,
            "namespace": egress.metadata.namespace,
            "labels": labels,
            "ownerReferences": [owner_reference(egress)],
        },
        "spec": spec,
    }


def overlay_service(live: Document, wanted: Document) -> Document:
    """`live` with what is ours as in `wanted`; its addresses stay."""
    spec = {field: value for field, value in live["spec"].items() if field != "sessionAffinityConfig"}
    return {
        **live,
        "metadata": overlay_metadata(live["metadata"], wanted["metadata"]),
        "spec": {**spec, **wanted["spec"]},
    }
