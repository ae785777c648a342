"""The template of an Egress's router pods: the user's, with what a router needs put into it."""

from collections.abc import Mapping
from typing import Any

from coil.crd.egress import Egress
from coil.egress.router_container import ROUTER_CONTAINER, RouterProgram, render_container
from coil.egress.router_label import router_labels

Document = dict[str, Any]

ROUTER_ACCOUNT = "coil-egress"
"""The ServiceAccount of router pods, one in each namespace that has Egresses."""


def render_pod_template(egress: Egress, program: RouterProgram) -> Document:
    """A PodTemplateSpec. Our labels and account win; the router's container is first unless the template places it."""
    template = egress.spec.template or {}
    metadata: Mapping[str, Any] = template.get("metadata") or {}
    spec: Document = dict(template.get("spec") or {})
    # Its older name, which would contradict the other.
    spec.pop("serviceAccount", None)
    return {
        "metadata": {
            "labels": {**(metadata.get("labels") or {}), **router_labels(egress.metadata.name)},
            "annotations": dict(metadata.get("annotations") or {}),
        },
        "spec": {
            **spec,
            "serviceAccountName": ROUTER_ACCOUNT,
            "containers": _render_containers(spec.get("containers") or [], egress.metadata.name, program),
        },
    }


def _render_containers(given: list[Document], egress_name: str, program: RouterProgram) -> list[Document]:
    if all(container.get("name") != ROUTER_CONTAINER for container in given):
        given = [{"name": ROUTER_CONTAINER}, *given]
    return [
        render_container(container, egress_name, program) if container.get("name") == ROUTER_CONTAINER else container
        for container in given
    ]
