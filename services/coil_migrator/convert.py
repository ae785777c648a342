"""Manifests of egressgateway 0.6 as they are needed here. Pure.

What these programs understand stays as it is, and so does every document of another kind; what is written in another
way means the same. What breaks a rule even then cannot be converted: all or nothing.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Final

import msgspec

from coil.crd.egress_gateway import EGRESS_GATEWAYS, EgressGateway
from coil.crd.egress_gateway_policy import AllocatorPolicy
from coil.crd.egress_policy import EGRESS_CLUSTER_POLICIES, EGRESS_POLICIES
from coil.crd.eip_validation import validate_gateway, validate_policy
from coil.crd.names import EIP_GROUP, GATEWAY_FINALIZER_0_6
from coil.crd.validation import FieldError, render_errors
from coil_migrator.check.cluster import Cluster
from coil_migrator.check.egress_gateways import gateways_of
from coil_migrator.check.egressgateway_object import (
    Undecodable,
    Untyped,
    decode_gateway,
    decode_policy,
    sample_mirror,
    subject_of,
)
from coil_migrator.check.manifest_object import read_object, with_manifests
from coil_migrator.check.policy_judgement import JudgedPolicy, judge_all
from coil_migrator.manifest import Document, render_document
from coil_migrator.manifest_reader import Manifest, is_list

_KINDS: Final = frozenset({EGRESS_GATEWAYS.kind, EGRESS_POLICIES.kind, EGRESS_CLUSTER_POLICIES.kind})
_OF_THE_SERVER: Final = frozenset(
    {"creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"}
)
"""Metadata that the API server writes, and that it refuses or compares in what is applied."""
_BEGINNING: Final = re.compile(r"^---(\s|$)", re.MULTILINE)

_Change = Callable[[Document], Document]


class ConversionError(Exception):
    """Some documents cannot be converted; the message says which and why, each on a line."""


class _ObjectError(Exception):
    """Why one object cannot be converted."""


def convert_manifests(manifests: Sequence[Manifest], cluster: Cluster | None = None) -> str:
    """The stream of documents. With `cluster`, addresses that gateways and policies have there, and to which nothing in
    them leads, are written into them. Raises ConversionError, and ManifestError for an object that is none of its kind.
    """
    converted = _convert_all(manifests, _respell)
    if cluster is not None:
        gateways = gateways_of(cluster)
        converted = _convert_all(converted, lambda document: _pin_gateway(document, gateways))
        before = judge_all(with_manifests(cluster, converted))
        converted = _convert_all(converted, lambda document: _pin_policy(document, before))
        after = judge_all(with_manifests(cluster, converted))
        converted = _convert_all(converted, lambda document: _confirm_pin(document, before, after))
    return _join(manifests, converted)


def _convert_all(manifests: Sequence[Manifest], change: _Change) -> list[Manifest]:
    """Raises ConversionError with all faults."""
    faults: list[str] = []
    converted: list[Manifest] = []
    for manifest in manifests:
        try:
            converted.append(replace(manifest, value=_convert(manifest.value, change)))
        except _ObjectError as error:
            faults.append(f"{manifest.place}: {error}")
    if faults:
        raise ConversionError("\n".join(faults))
    return converted


def _convert(value: Any, change: _Change) -> Any:
    if not isinstance(value, dict):
        return value
    if is_list(value):
        return {**value, "items": [_convert(item, change) for item in value["items"]]}
    is_theirs = str(value.get("apiVersion", "")).partition("/")[0] == EIP_GROUP and value.get("kind") in _KINDS
    return change(value) if is_theirs else value


def _join(before: Sequence[Manifest], after: Sequence[Manifest]) -> str:
    """Documents that have not changed as they were written."""
    joined = ""
    for old, new in zip(before, after, strict=True):
        try:
            text = old.text if old.value == new.value else render_document(new.value)
        except ValueError as error:
            raise ConversionError(f"{old.place}: {error}") from error
        if joined and not joined.endswith("\n"):
            joined += "\n"
        # The first of a file need not have a mark.
        joined += text if not joined or _BEGINNING.search(text) else f"---\n{text}"
    return joined


def _respell(document: Document) -> Document:
    if document["apiVersion"] != EGRESS_GATEWAYS.api_version:
        raise _ObjectError(f"{document['kind']}: only {EGRESS_GATEWAYS.api_version} can be converted")
    _read(document)
    document = deepcopy(document)
    document.pop("status", None)
    metadata = document["metadata"]
    for name in _OF_THE_SERVER.intersection(metadata):
        del metadata[name]
    if GATEWAY_FINALIZER_0_6 in (finalizers := metadata.get("finalizers") or ()):
        metadata["finalizers"] = [each for each in finalizers if each != GATEWAY_FINALIZER_0_6]
    if document["kind"] != EGRESS_GATEWAYS.kind:
        _respell_policy(document["spec"])
    if errors := _read(document):
        raise _ObjectError(f"{_subject(document)}: {render_errors(errors)}")
    return document


def _respell_policy(spec: Document) -> None:
    address = spec.get("egressIP") or {}
    if address.get("allocatorPolicy") not in {*AllocatorPolicy, None}:
        address["allocatorPolicy"] = str(AllocatorPolicy.DEFAULT)
    applied = spec["appliedTo"]
    if applied.get("podSelector") is not None and "podSubnet" in applied:
        # Of no effect there. It is written, as applying a manifest without the field need not remove it.
        applied["podSubnet"] = []
    for owner, name in ((spec, "destSubnet"), (applied, "podSubnet")):
        if texts := owner.get(name):
            owner[name] = list(dict.fromkeys(texts))


def _read(document: Document) -> list[FieldError]:
    """The rules that an object breaks by itself. Raises _ObjectError for one that is not even one of its kind."""
    found = _object(document)
    decode = decode_gateway if document["kind"] == EGRESS_GATEWAYS.kind else decode_policy
    decoded = decode(found)
    if isinstance(decoded, Undecodable):
        raise _ObjectError(f"{_subject(document)}: {decoded.reason}")
    required = "nodeSelector" if document["kind"] == EGRESS_GATEWAYS.kind else "appliedTo"
    if not isinstance(document.get("spec"), Mapping) or required not in document["spec"]:
        raise _ObjectError(f"{_subject(document)}: spec.{required} is missing")
    if isinstance(decoded, EgressGateway):
        return validate_gateway(decoded)
    return validate_policy(sample_mirror(decoded))


def _object(document: Document) -> Untyped:
    try:
        return read_object(document, Untyped, namespaced=document["kind"] == EGRESS_POLICIES.kind)
    except msgspec.ValidationError as error:
        raise _ObjectError(f"{document['kind']}: {error}") from error


def _subject(document: Document) -> str:
    return subject_of(document["kind"], _object(document).metadata)


def _pin_gateway(document: Document, gateways: Mapping[str, EgressGateway]) -> Document:
    """With the default EIPs that admission there has drawn."""
    found = gateways.get(_object(document).metadata.name) if document["kind"] == EGRESS_GATEWAYS.kind else None
    pools = document["spec"].get("ippools")
    if found is None or not pools:
        return document
    drawn = {
        "ipv4DefaultEIP": found.spec.ippools.ipv4_default_eip,
        "ipv6DefaultEIP": found.spec.ippools.ipv6_default_eip,
    }
    missing = {name: text for name, text in drawn.items() if text and not pools.get(name)}
    pinned = {**document, "spec": {**document["spec"], "ippools": {**pools, **missing}}}
    if errors := _read(pinned):
        raise _ObjectError(f"{_subject(document)}: {render_errors(errors)}")
    return pinned


def _pin_policy(document: Document, judged: Mapping[str, JudgedPolicy]) -> Document:
    """With the address that it has."""
    subject = _subject(document)
    today = judged[subject].unwritten_eip if subject in judged else None
    if today is None:
        return document
    parts = {"ipv4": today.ipv4, "ipv6": today.ipv6}
    address = {name: str(part) for name, part in parts.items() if part is not None}
    spec = document["spec"]
    return {**document, "spec": {**spec, "egressIP": {**(spec.get("egressIP") or {}), **address}}}


def _confirm_pin(document: Document, before: Mapping[str, JudgedPolicy], after: Mapping[str, JudgedPolicy]) -> Document:
    """The address that was written must be one that the policy gets."""
    subject = _subject(document)
    if subject in before and before[subject].unwritten_eip is not None and (refused := list(after[subject].refusals)):
        raise _ObjectError(f"{subject}: cannot keep {before[subject].unwritten_eip}: {refused[0]}")
    return document
