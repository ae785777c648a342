"""Judges changes of Egresses before they are stored.

Every replica answers, from before it knows the cluster until its end, and needs nothing but the object to do it. A new
Egress must keep every rule; of an update only what it breaks anew is refused, so that one that was stored in worse
times can always be labelled, scaled or mended step by step. How many router pods there are to be is also changed
through the scale subresource, which webhooks do not see: its bounds stand in the CRD's schema.
"""

from collections.abc import Mapping
from typing import Any

from coil.admission.review import (
    ALLOWED,
    AdmissionRequest,
    Allowed,
    Invalid,
    Operation,
    ReviewError,
    Verdict,
    decode_object,
)
from coil.admission.server import Judge
from coil.crd.egress import Egress
from coil.crd.egress_validation import validate_egress
from coil.crd.field_error import FieldError
from coil.egress.router_container import ROUTER_CONTAINER

MUTATE_PATH = "/mutate-coil-cybozu-com-v2-egress"
VALIDATE_PATH = "/validate-coil-cybozu-com-v2-egress"

Patch = list[dict[str, Any]]


class EgressAdmission:
    @property
    def judges(self) -> Mapping[str, Judge]:
        """By path, as Coil v2 names them."""
        return {MUTATE_PATH: self.mutate, VALIDATE_PATH: self.validate}

    async def mutate(self, request: AdmissionRequest) -> Verdict:
        """Name the router's container in a new template that has none, for people to see where to add to it."""
        if request.operation is not Operation.CREATE:
            return ALLOWED
        try:
            egress = decode_object(request.object, Egress)
        except ReviewError:
            return ALLOWED  # the schema, or the other webhook, says what is wrong
        return Allowed(plan_container(egress))

    async def validate(self, request: AdmissionRequest) -> Verdict:
        """Refuse what breaks a rule, naming the fields."""
        if request.operation not in {Operation.CREATE, Operation.UPDATE}:
            return ALLOWED
        try:
            new = decode_object(request.object, Egress)
        except ReviewError as error:
            return Invalid([FieldError("spec", str(error))])
        old = _faults_before(request) if request.operation is Operation.UPDATE else []
        faults = [fault for fault in validate_egress(new) if fault not in old]
        return Invalid(faults) if faults else ALLOWED


def plan_container(egress: Egress) -> Patch:
    """The operations that give a template without containers its first; none for an Egress without a template."""
    template = egress.spec.template
    if template is None:
        return []
    container = [{"name": ROUTER_CONTAINER}]
    spec = template.get("spec")
    if spec is None:
        return [{"op": "add", "path": "/spec/template/spec", "value": {"containers": container}}]
    if spec.get("containers"):
        return []
    return [{"op": "add", "path": "/spec/template/spec/containers", "value": container}]


def _faults_before(request: AdmissionRequest) -> list[FieldError]:
    """What was wrong before an update. One that could not even be decoded has nothing worth keeping."""
    try:
        return validate_egress(decode_object(request.old_object, Egress))
    except ReviewError:
        return []
