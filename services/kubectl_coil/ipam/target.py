"""What `kubectl coil ipam show` was asked about: a pool, a node, a pod, or an address. Pure."""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, TypeAlias

from coil.crd.names import is_namespace_name, is_object_name
from coil.kernel.family import IPAddress

FORMS: Final = "ADDRESS, pool/NAME, node/NAME, pod/NAMESPACE/NAME, or pod/NAME with --namespace"


class TargetError(ValueError):
    """It is none of these; says which there are."""


@dataclass(frozen=True, slots=True)
class PoolTarget:
    name: str

    def __str__(self) -> str:
        return f"pool/{self.name}"


@dataclass(frozen=True, slots=True)
class NodeTarget:
    name: str

    def __str__(self) -> str:
        return f"node/{self.name}"


@dataclass(frozen=True, slots=True)
class PodTarget:
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"pod/{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class AddressTarget:
    address: IPAddress

    def __str__(self) -> str:
        return str(self.address)


Target: TypeAlias = PoolTarget | NodeTarget | PodTarget | AddressTarget


def parse_target(text: str, *, namespace: str) -> Target:
    """The kinds may be spelled as kubectl spells them. `namespace` is for pods without one. Raises TargetError."""
    kind, slash, name = text.partition("/")
    if not slash:
        try:
            return AddressTarget(ip_address(text))
        except ValueError:
            raise TargetError(f"{text!r} is none of {FORMS}") from None
    match kind:
        case "pool" | "pools" | "addresspool" | "addresspools" if is_object_name(name):
            return PoolTarget(name)
        case "node" | "nodes" | "no" if is_object_name(name):
            return NodeTarget(name)
        case "pod" | "pods" | "po":
            before, slash, after = name.partition("/")
            place, pod = (before, after) if slash else (namespace, name)
            if is_namespace_name(place) and is_object_name(pod):
                return PodTarget(place, pod)
    raise TargetError(f"{text!r} is none of {FORMS}")
