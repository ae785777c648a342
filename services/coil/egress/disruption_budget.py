"""The PodDisruptionBudget of an Egress's router pods, if one is asked for: how many may be evicted at once."""

from typing import Any

from coil.crd.egress import Egress
from coil.egress.overlay import overlay_metadata
from coil.egress.ownership import owner_reference
from coil.egress.router_label import router_labels

Document = dict[str, Any]

BOUNDS = ("minAvailable", "maxUnavailable")


def render_budget(egress: Egress) -> Document | None:
    """As it is created; None if the Egress wants none, or names no bound."""
    asked = egress.spec.pod_disruption_budget or {}
    bounds = {bound: asked[bound] for bound in BOUNDS if asked.get(bound) is not None}
    if not bounds:
        return None
    labels = router_labels(egress.metadata.name)
    return {
        "metadata": {
            "name": egress.metadata.name,
            "namespace": egress.metadata.namespace,
            "labels": labels,
            "ownerReferences": [owner_reference(egress)],
        },
        "spec": {**bounds, "selector": {"matchLabels": labels}},
    }


def overlay_budget(live: Document, wanted: Document) -> Document:
    """`live` with what is ours as in `wanted`: a bound that is no longer asked for goes."""
    spec = {field: value for field, value in live["spec"].items() if field not in BOUNDS}
    return {
        **live,
        "metadata": overlay_metadata(live["metadata"], wanted["metadata"]),
        "spec": {**spec, **wanted["spec"]},
    }
