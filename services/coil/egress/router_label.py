"""The labels by which everything of one Egress is known, and found."""

from coil.crd.names import APP_NAME, COMPONENT_EGRESS, LABEL_APP_COMPONENT, LABEL_APP_INSTANCE, LABEL_APP_NAME

EGRESS_SELECTOR = f"{LABEL_APP_COMPONENT}={COMPONENT_EGRESS},{LABEL_APP_NAME}={APP_NAME}"
"""What belongs to any Egress, as a label selector."""


def router_labels(egress_name: str) -> dict[str, str]:
    """Of the Deployment, its pods, the Service and the disruption budget of the Egress of that name."""
    return {
        LABEL_APP_NAME: APP_NAME,
        LABEL_APP_COMPONENT: COMPONENT_EGRESS,
        LABEL_APP_INSTANCE: egress_name,
    }


def router_selector(egress_name: str) -> str:
    """The same as a label selector, sorted as Kubernetes writes it: the scale subresource shows it."""
    return ",".join(f"{label}={value}" for label, value in sorted(router_labels(egress_name).items()))
