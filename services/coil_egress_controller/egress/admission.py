"""Checks changes of Egresses before they are stored.

Every replica answers, also before its caches are synced, as it needs nothing but the object. A new Egress must keep
every rule; an update is refused only for rules that it breaks itself, so that an Egress that was stored in violation of
some can still be labelled, scaled or repaired step by step. A template with rights that router pods may not have is an
exception: it stays as it is or is repaired as a whole, because whatever else is changed in it would run with these
rights. The number of router pods is also changed through the scale subresource, which webhooks do not see: its bounds
are in the CRD's schema.
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
from coil.admission.server import AdmissionHandler
from coil.crd.egress import Egress
from coil.crd.egress_validation import validate_fields, validate_rights
from coil.crd.validation import FieldError
from coil.egress.router_pod import ROUTER_CONTAINER

MUTATE_PATH = "/mutate-coil-cybozu-com-v2-egress"
VALIDATE_PATH = "/validate-coil-cybozu-com-v2-egress"

_UNSERVED = "no Egress is served in this cluster: egress.enabled of Coil's chart is false"

Patch = list[dict[str, Any]]


class EgressAdmission:
    """`privileged_templates`: router pods may have any privilege that an Egress asks for. Where Egresses are not
    `served`, whoever creates one is warned.
    """

    def __init__(self, *, privileged_templates: bool = False, served: bool = True) -> None:
        self._accepted = ALLOWED if served else Allowed(warnings=[_UNSERVED])
        self._privileged_templates = privileged_templates

    @property
    def handlers(self) -> Mapping[str, AdmissionHandler]:
        """By path, as Coil v2 names them."""
        return {MUTATE_PATH: self.mutate, VALIDATE_PATH: self.validate}

    async def mutate(self, request: AdmissionRequest) -> Verdict:
        """Add the router's container to a new template that has none, so that people see where to add to it."""
        if request.operation is not Operation.CREATE:
            return ALLOWED
        try:
            egress = decode_object(request.object, Egress)
        except ReviewError:
            return ALLOWED  # refused by the schema or the other webhook, with the reason
        return Allowed(plan_container(egress))

    async def validate(self, request: AdmissionRequest) -> Verdict:
        """Refuse violations of rules, with their fields."""
        if request.operation not in {Operation.CREATE, Operation.UPDATE}:
            return ALLOWED
        try:
            new = decode_object(request.object, Egress)
        except ReviewError as error:
            return Invalid([FieldError("spec", str(error))])
        old = _find_old(request)
        before = validate_fields(old) if old is not None else []
        faults = [fault for fault in validate_fields(new) if fault not in before]
        if old is None or old.spec.template != new.spec.template:
            faults += validate_rights(new, privileged_templates=self._privileged_templates)
        return Invalid(faults) if faults else self._accepted


def _find_old(request: AdmissionRequest) -> Egress | None:
    """What an update changes; None for a new Egress, and if it cannot be decoded: the new one must keep every rule."""
    if request.operation is not Operation.UPDATE:
        return None
    try:
        return decode_object(request.old_object, Egress)
    except ReviewError:
        return None


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
