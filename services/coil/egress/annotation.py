"""Which Egresses a pod asks for, as its annotations say it: `egress.coil.cybozu.com/<namespace>: name[, name…]`.

Read on both sides: by coild for the pods of its node, and in each router pod to find its clients. Whoever writes
annotations is a person, so nonsense is reported and what is right beside it counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from coil.crd.names import ANNOTATION_EGRESS_PREFIX, is_namespace_name, is_object_name


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
