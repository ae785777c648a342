"""The node that coild is on, as what Events are about."""

from coil.crd.builtin import NODES
from coil.crd.names import NodeName
from coil.reconcile.event_series import EventSubject


def node_subject(node: NodeName) -> EventSubject:
    """The Node, as what Events are about. `kubectl describe node` finds those whose uid is the name, as the kubelet's
    are.
    """
    return EventSubject(NODES.api_version, NODES.kind, node, uid=node)
