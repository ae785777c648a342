"""Whose an object is: what an Egress has had made carries a controller reference to it, and nothing else is touched."""

from enum import Enum
from typing import Any

from coil.crd.egress import EGRESSES, Egress
from coil.crd.meta import ObjectMeta, OwnerReference

Document = dict[str, Any]


class Ownership(Enum):
    OURS = "ours"
    """Made for this very Egress."""
    LEFTOVER = "leftover"
    """Made for an earlier Egress of the same name: the garbage collector is about to take it."""
    FOREIGN = "foreign"


def owner_reference(egress: Egress) -> Document:
    """Has the garbage collector remove the object with the Egress."""
    return {
        "apiVersion": EGRESSES.api_version,
        "kind": EGRESSES.kind,
        "name": egress.metadata.name,
        "uid": egress.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def judge_ownership(metadata: ObjectMeta, egress: Egress) -> Ownership:
    """Whose the object with `metadata` is, as seen by `egress`."""
    controller = next((owner for owner in metadata.owner_references if owner.controller), None)
    if controller is None or not _names_egress(controller, egress):
        return Ownership.FOREIGN
    return Ownership.OURS if controller.uid == egress.metadata.uid else Ownership.LEFTOVER


def _names_egress(owner: OwnerReference, egress: Egress) -> bool:
    group = owner.api_version.partition("/")[0]
    return (group, owner.kind, owner.name) == (EGRESSES.group, EGRESSES.kind, egress.metadata.name)
