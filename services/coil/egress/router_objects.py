"""The objects of an Egress's router pods: their Deployment, Service and PodDisruptionBudget, as they are created, and
as one that is there becomes ours where it is ours, and stays theirs elsewhere. What an Egress has had made carries a
controller reference to it; nothing else is touched.

Of the Deployment ours are: how many pods, how they are replaced, and all of the pods' spec, which people change in the
Egress's template and nowhere else. Of the metadata of Deployment and pods ours are the labels that find them, and
whatever the template says; what others have added stays, such as the annotation by which `kubectl rollout restart`
restarts the pods. What the template said the last time is written down in an annotation, so that it goes when the
template no longer says it.

The Service is where clients send their tunnels. Both families are asked for, and the API server gives those that the
cluster has. The selector, the port and the affinity of sessions are ours, as is the type, because clients need a
cluster address.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from coil.crd.egress import EGRESSES, Egress
from coil.crd.meta import ObjectMeta, OwnerReference
from coil.egress.router_pod import RouterProgram, render_pod_template, router_labels

Document = dict[str, Any]


def overlay_metadata(live: Document, wanted: Document) -> Document:
    """`live` metadata, resource version included, with the labels and annotations of `wanted` among its own.

    Owner references stay: an object is only written to when it has ours.
    """
    merged = {field: {**(live.get(field) or {}), **(wanted.get(field) or {})} for field in ("labels", "annotations")}
    return {**live, **{field: entries for field, entries in merged.items() if entries}}


class Ownership(Enum):
    OURS = "ours"
    """Made for this very Egress."""
    LEFTOVER = "leftover"
    """Made for an earlier Egress of the same name: the garbage collector is about to take it."""
    FOREIGN = "foreign"


def owner_reference(egress: Egress) -> Document:
    """Has the garbage collector remove the object with the Egress."""
    return {
        "apiVersion": EGRESSES.api_version,
        "kind": EGRESSES.kind,
        "name": egress.metadata.name,
        "uid": egress.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def find_ownership(metadata: ObjectMeta, egress: Egress) -> Ownership:
    """Whose the object with `metadata` is, as seen by `egress`."""
    controller = next((owner for owner in metadata.owner_references if owner.controller), None)
    if controller is None or not _names_egress(controller, egress):
        return Ownership.FOREIGN
    return Ownership.OURS if controller.uid == egress.metadata.uid else Ownership.LEFTOVER


def _names_egress(owner: OwnerReference, egress: Egress) -> bool:
    group = owner.api_version.partition("/")[0]
    return (group, owner.kind, owner.name) == (EGRESSES.group, EGRESSES.kind, egress.metadata.name)


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


def render_replicas(egress: Egress) -> Document:
    """What of a Deployment follows an Egress whose template may not be carried out."""
    return {"spec": {"replicas": egress.spec.replicas}}


def overlay_replicas(live: Document, wanted: Document) -> Document:
    """`live` with the number of pods of `wanted`."""
    return {**live, "spec": {**live["spec"], **wanted["spec"]}}


def _template_keys(live: Document) -> Mapping[str, list[str]]:
    """What the template said the last time; nothing when that was not written down, or not by us."""
    text = (live["metadata"].get("annotations") or {}).get(ANNOTATION_TEMPLATE_KEYS, "")
    try:
        return msgspec.json.decode(text, type=dict[str, list[str]])
    except msgspec.MsgspecError:
        return {}


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
