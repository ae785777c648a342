"""The tags by which interfaces are known to be Coil's, and whose they are.

An IAM policy limits a node by them to its own cluster, and the controller collects by them what no node has any more.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

CLUSTER_TAG: Final = "coil.cybozu.com/cluster"
"""The cluster's name."""
INSTANCE_TAG: Final = "coil.cybozu.com/instance"
"""The instance that an interface was made for."""
CREATED_TAG: Final = "coil.cybozu.com/created"
"""When an interface was made, as RFC 3339 has it, in UTC."""

NO_MANAGE_TAG: Final = "node.k8s.amazonaws.com/no_manage"
"""Known from amazon-vpc-cni-k8s: an interface that the plugin is to leave alone, if its value is "true"."""

SUBNET_TAG: Final = "kubernetes.io/role/cni"
"""Known from other plugins: a further subnet for nodes of its VPC and zone, if its value is `SUBNET_VALUE`."""
SUBNET_VALUE: Final = "1"


def is_managed(tags: Mapping[str, str]) -> bool:
    """Whether nobody has asked that an interface with these tags be left alone."""
    return tags.get(NO_MANAGE_TAG, "").lower() != "true"


def render_created(moment: datetime) -> str:
    """The value of `CREATED_TAG`, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_created(text: str) -> datetime | None:
    """The moment that a tag names; None for one that names none, which no node has written."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
