"""The leader's view of EC2 as a part of the cluster's document. Pure: the same view, the same document."""

import math

from coil.page import cluster_document as page
from coil_ipam_controller.eni.view import EniView, SubnetState

_HOUR = 3600


def describe_interfaces(view: EniView) -> page.InterfacesDocument:
    return page.InterfacesDocument(
        cluster=view.cluster,
        seen_at=view.seen_at,
        unattached=view.unattached,
        subnets=tuple(_describe_subnet(each) for each in view.subnets),
        troubles=dict(view.troubles),
    )


def _describe_subnet(state: SubnetState) -> page.VpcSubnetDocument:
    left = state.dry_in
    return page.VpcSubnetDocument(
        id=state.id,
        zone=state.zone,
        ipv4=str(state.ipv4),
        total=state.total,
        free=state.free,
        interfaces=state.interfaces,
        tagged=state.tagged,
        taken_per_hour=None if state.consumption is None else round(state.consumption * _HOUR, 1),
        # JSON has no infinity.
        dry_in_seconds=None if left is None or math.isinf(left) else round(left),
    )
