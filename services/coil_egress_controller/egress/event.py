"""What people are told of an Egress by Events. Equal occurrences become one Event with a growing count."""

from typing import Any

from coil.crd.egress import EGRESSES, Egress
from coil.crd.field_error import FieldError, render_errors
from coil.crd.resource import Resource
from coil.kube.errors import ApiError
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject


def tell_invalid(recorder: Recorder, egress: Egress, errors: list[FieldError]) -> None:
    """It breaks rules, and was stored past admission. What can be carried out of it is."""
    _warn(recorder, egress, "EgressInvalid", render_errors(errors))


def tell_refused(recorder: Recorder, egress: Egress, resource: Resource[Any], error: ApiError) -> None:
    """The API server does not take what follows from the Egress."""
    _warn(recorder, egress, f"{resource.kind}Refused", f"the API server refuses the {resource.kind}: {error.message}")


def tell_name_taken(recorder: Recorder, egress: Egress, resource: Resource[Any]) -> None:
    """Somebody else's object is where ours is to be."""
    name = f"{egress.metadata.namespace}/{egress.metadata.name}"
    message = f"the {resource.kind} {name} was not made for this Egress and is left alone: rename or delete either"
    _warn(recorder, egress, f"{resource.kind}NameTaken", message)


def _warn(recorder: Recorder, egress: Egress, reason: str, message: str) -> None:
    recorder.warn(EventSubject.of(EGRESSES, egress.metadata), reason=reason, message=message)
