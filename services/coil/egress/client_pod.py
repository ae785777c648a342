"""Which pods are clients of which Egresses, and by which addresses router pods know them. Pure.

A pod asks by annotations: `egress.coil.cybozu.com/<namespace>: name[, name…]`. They are read on both sides: by coild
for the pods of its node, and in each router pod to find its clients. Whoever writes them is a person, so nonsense is
reported and what is right beside it counts.

A pod that uses its node's network cannot have a tunnel of its own, and one that has run to its end sends nothing any
more, though its object and its addresses stay. One that is being deleted may still have a last word to say.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from coil.crd.builtin import Pod
from coil.crd.names import ANNOTATION_EGRESS_PREFIX, is_namespace_name, is_object_name
from coil.kernel.family import IPAddress


@dataclass(frozen=True, slots=True, order=True)
class EgressRef:
    """One Egress by its name. The order is that of the gateways of a client."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class EgressNames:
    """`references` are in order and each is there once. `problems` and `duplicates` are sentences that name the
    annotation: after a problem nobody knows which Egress was meant, a duplicate changes nothing.
    """

    references: tuple[EgressRef, ...] = ()
    problems: tuple[str, ...] = ()
    duplicates: tuple[str, ...] = ()

    @property
    def asks(self) -> bool:
        """Whether an Egress is asked for, rightly or wrongly."""
        return bool(self.references or self.problems)


def parse_egress_annotations(annotations: Mapping[str, str]) -> EgressNames:
    """The Egresses that `annotations` of a pod name, whether or not they exist. Blanks around names do not matter."""
    references: set[EgressRef] = set()
    problems: list[str] = []
    duplicates: list[str] = []
    for key, value in sorted(annotations.items()):
        if not key.startswith(ANNOTATION_EGRESS_PREFIX):
            continue
        namespace = key.removeprefix(ANNOTATION_EGRESS_PREFIX)
        if not is_namespace_name(namespace):
            problems.append(f"annotation {key}: {namespace!r} is not the name of a namespace")
            continue
        for name in (part.strip() for part in value.split(",")):
            reference = EgressRef(namespace, name)
            if not name:
                problems.append(f"annotation {key}: a name is missing in {value!r}")
            elif not is_object_name(name):
                problems.append(f"annotation {key}: {name!r} is not the name of an Egress")
            elif reference in references:
                duplicates.append(f"annotation {key}: {name!r} is named twice")
            else:
                references.add(reference)
    return EgressNames(tuple(sorted(references)), tuple(problems), tuple(duplicates))


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
    return parse_client_addresses(entry.ip for entry in pod.status.pod_ips)


def parse_client_addresses(texts: Iterable[str]) -> frozenset[IPAddress]:
    """The addresses, without what cannot be the address of a pod on a network."""
    return frozenset(address for text in texts if (address := _parse(text)) is not None)


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
