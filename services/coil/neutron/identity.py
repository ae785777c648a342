"""By what an object in Neutron is known as this cluster's, and as that of one Kubernetes object.

An identity is the object's `name`: of all attributes, it is the one that every kind has and that the call which creates
an object sets. Tags are a second call for most kinds; a process that is killed between the two leaves an object without
a tag, but not without a name. The tag repeats the cluster, so that an administrator can list what is its own.

    coil:<cluster>:<kind>:<uid>        coil:5f0c6e2b91aa:port:6b7e4c1e-3d0a-4f57-8b8e-2f0c7e1d9a41

A UID is never used again, and a name can be. What people want to read (namespace and name) is in the description.

Neutron takes 255 characters of a name and of a description, and 60 of a tag (neutron-lib, `api/definitions/tag.py`);
an identity has at most `LONGEST`.
"""

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NewType

ClusterId = NewType("ClusterId", str)
"""At most 12 characters of `[a-z0-9-]`; see `cluster_id`."""

LONGEST: Final = 60
"""Neutron's limit for a tag, which is the shortest of all."""
LONGEST_DESCRIPTION: Final = 255

_PREFIX: Final = "coil"
_CLUSTER: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,10}[a-z0-9])?")
_IDENTITY: Final = re.compile(
    rf"{_PREFIX}:(?P<cluster>{_CLUSTER.pattern}):(?P<kind>[a-z0-9]+):(?P<uid>[A-Za-z0-9-]{{1,36}})"
)
_DIGEST_CHARACTERS: Final = 12


class Kind(StrEnum):
    """What an object is for. The values are part of names in Neutron, and never change."""

    NETWORK = "net"
    SUBNET_IPV4 = "snet4"
    SUBNET_IPV6 = "snet6"
    ROUTER = "rtr"
    SECURITY_GROUP = "sg"
    PORT = "port"
    POOLED_PORT = "pool"
    VIP_NETWORK = "vip"
    VIP_SUBNET_IPV4 = "vip4"
    VIP_SUBNET_IPV6 = "vip6"
    LOAD_BALANCER_IPV4 = "lb4"
    LOAD_BALANCER_IPV6 = "lb6"
    FLOATING_IP = "fip"


@dataclass(frozen=True, slots=True)
class Identity:
    """Of an object in Neutron. `uid` is that of the Kubernetes object which it serves; of a pooled port, which serves
    none, it is any UUID.

    Raises ValueError for parts that could not be told apart again.
    """

    cluster: ClusterId
    kind: Kind
    uid: str

    def __post_init__(self) -> None:
        if _IDENTITY.fullmatch(self.name) is None:
            raise ValueError(f"{self.cluster!r} and {self.uid!r} do not make up a name in Neutron")

    @property
    def name(self) -> str:
        """The object's name in Neutron; at most `LONGEST` characters."""
        return f"{_PREFIX}:{self.cluster}:{self.kind}:{self.uid}"


def parse_identity(name: str) -> Identity | None:
    """The identity that a name is; None for any other name, so for what this suite did not make."""
    found = _IDENTITY.fullmatch(name)
    if found is None:
        return None
    try:
        kind = Kind(found["kind"])
    except ValueError:
        return None
    return Identity(ClusterId(found["cluster"]), kind, found["uid"])


def cluster_tag(cluster: ClusterId) -> str:
    """The tag of everything that is the cluster's."""
    return f"{_PREFIX}:{cluster}"


def cluster_id(namespace_uid: str, given: str = "") -> ClusterId:
    """The cluster's: `given`, or else derived from the UID of the namespace kube-system.

    Two clusters in one project have different ones, though nobody configured either. Raises ValueError for a name that
    is too long, or has other characters than lowercase letters, digits and hyphens.
    """
    if given:
        if _CLUSTER.fullmatch(given) is None:
            raise ValueError(
                f"{given!r} is no cluster name: 1 to 12 lowercase letters, digits and hyphens are, with no hyphen at "
                "either end"
            )
        return ClusterId(given)
    if not namespace_uid:
        raise ValueError("the namespace kube-system has no UID to derive the cluster's name from")
    return ClusterId(_digest(namespace_uid))


def describe(kind: str, namespace: str, name: str) -> str:
    """What an administrator is to read of the object in `description`: "Pod default/web-0".

    Longer ones are cut, and end with a digest, so that two that begin alike stay different.
    """
    text = f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"
    if len(text) <= LONGEST_DESCRIPTION:
        return text
    digest = _digest(text)
    return f"{text[: LONGEST_DESCRIPTION - len(digest) - 2]}… {digest}"[:LONGEST_DESCRIPTION]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARACTERS]
