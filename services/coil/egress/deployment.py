"""The Deployment of an Egress's router pods.

Ours are: how many pods, how they are replaced, and all of the pods' spec, which people change in the Egress's template
and nowhere else. Of the metadata of Deployment and pods ours are the labels that find them, and whatever the template
says; what others have added stays, such as the annotation by which `kubectl rollout restart` restarts the pods. What
the template said the last time is written down in an annotation, so that it goes when the template no longer says it.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from coil.crd.egress import Egress
from coil.egress.overlay import overlay_metadata
from coil.egress.ownership import owner_reference
from coil.egress.router_container import RouterProgram
from coil.egress.router_label import router_labels
from coil.egress.router_pod import render_pod_template

Document = dict[str, Any]

ANNOTATION_TEMPLATE_KEYS = "coil.cybozu.com/template-keys"
"""Which keys of the pods' labels and annotations come from the Egress's template, as JSON."""

_METADATA = ("annotations", "labels")


def render_deployment(egress: Egress, program: RouterProgram) -> Document:
    """As it is created."""
    labels = router_labels(egress.metadata.name)
    template = render_pod_template(egress, program)
    keys = {field: sorted(template["metadata"][field]) for field in _METADATA}
    return {
        "metadata": {
            "name": egress.metadata.name,
            "namespace": egress.metadata.namespace,
            "labels": labels,
            "annotations": {ANNOTATION_TEMPLATE_KEYS: msgspec.json.encode(keys).decode()},
            "ownerReferences": [owner_reference(egress)],
        },
        "spec": {
            "replicas": egress.spec.replicas,
            "selector": {"matchLabels": labels},
            # Whatever it was before, an empty one becomes the API server's default.
            "strategy": egress.spec.strategy or {},
            "template": template,
        },
    }


def overlay_deployment(live: Document, wanted: Document) -> Document:
    """`live` with what is ours as in `wanted`."""
    before = _template_keys(live)
    template = live["spec"]["template"]
    metadata = dict(template.get("metadata") or {})
    for field in _METADATA:
        kept = {key: value for key, value in (metadata.get(field) or {}).items() if key not in before.get(field, ())}
        metadata[field] = kept | wanted["spec"]["template"]["metadata"][field]
    return {
        **live,
        "metadata": overlay_metadata(live["metadata"], wanted["metadata"]),
        "spec": {
            **live["spec"],
            "replicas": wanted["spec"]["replicas"],
            "strategy": wanted["spec"]["strategy"],
            "template": {**template, "metadata": metadata, "spec": wanted["spec"]["template"]["spec"]},
        },
    }


def _template_keys(live: Document) -> Mapping[str, list[str]]:
    """What the template said the last time; nothing when that was not written down, or not by us."""
    text = (live["metadata"].get("annotations") or {}).get(ANNOTATION_TEMPLATE_KEYS, "")
    try:
        return msgspec.json.decode(text, type=dict[str, list[str]])
    except msgspec.MsgspecError:
        return {}
