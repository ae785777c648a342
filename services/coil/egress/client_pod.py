"""Which pods are clients of an Egress, and by which addresses its router pods know them. Pure.

A pod that uses its node's network cannot have a tunnel of its own, and one that has run to its end sends nothing any
more, though its object and its addresses stay. One that is being deleted may still have a last word to say.
"""

from ipaddress import ip_address

from coil.crd.builtin import Pod
from coil.crd.names import ANNOTATION_EGRESS_PREFIX
from coil.egress.annotation import EgressRef
from coil.kernel.family import IPAddress

FINAL_PHASES = ("Succeeded", "Failed")


def is_client(pod: Pod, egress: EgressRef) -> bool:
    """Whether `pod` is to be served by the router pods of `egress`. It need not have an address yet.

    Asked for every pod of the cluster and each of its changes, so it looks at one annotation and no other.
    """
    names = pod.metadata.annotations.get(ANNOTATION_EGRESS_PREFIX + egress.namespace)
    if names is None or pod.spec.host_network or pod.status.phase in FINAL_PHASES:
        return False
    return any(name.strip() == egress.name for name in names.split(","))


def client_addresses(pod: Pod) -> frozenset[IPAddress]:
    """The addresses that the pod has by now. What cannot be the address of a pod on a network is left out."""
    return frozenset(address for entry in pod.status.pod_ips if (address := _parse(entry.ip)) is not None)


def _parse(text: str) -> IPAddress | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    unusable = (
        address.is_unspecified
        or address.is_loopback
        or address.is_multicast
        or address.is_link_local
        or (address.version == 6 and (address.scope_id is not None or address.ipv4_mapped is not None))
    )
    return None if unusable else address
