"""Judges a manifest as it would be judged when it is applied: unknown fields, schemas, their rules, admission."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import msgspec

from coil.crd.address_pool import AddressPool
from coil.crd.egress import Egress
from coil.crd.egress_gateway import EgressGateway
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.egress_policy import EgressClusterPolicy, EgressPolicy
from coil.crd.egress_validation import validate_egress
from coil.crd.eip_validation import validate_gateway, validate_policy
from coil.crd.pool_validation import validate_pool
from coil.crd.schema import definitions
from coil.crd.validation import FieldError
from coil.eip.policy_mirror import Source, mirror_spec
from integration.pod_template_schema import pod_template_schema
from tests.coil.crd.cel import evaluate_rules
from tests.coil.crd.structural import faults

Document = dict[str, Any]

_VALIDATIONS: Final[Mapping[str, Callable[[Document], list[FieldError]]]] = {
    "AddressPool": lambda document: validate_pool(msgspec.convert(document, AddressPool)),
    "Egress": lambda document: validate_egress(msgspec.convert(document, Egress)),
    "EgressGateway": lambda document: validate_gateway(msgspec.convert(document, EgressGateway)),
    "EgressGatewayPolicy": lambda document: validate_policy(msgspec.convert(document, EgressGatewayPolicy)),
    "EgressPolicy": lambda document: _validate_source(msgspec.convert(document, EgressPolicy)),
    "EgressClusterPolicy": lambda document: _validate_source(msgspec.convert(document, EgressClusterPolicy)),
}
_METADATA: Final = {"name", "namespace", "labels", "annotations"}
_TOP: Final = {
    "Namespace": {"apiVersion", "kind", "metadata"},
    "Deployment": {"apiVersion", "kind", "metadata", "spec"},
    "ClusterRole": {"apiVersion", "kind", "metadata", "rules"},
}
_VERSIONS: Final = {"Namespace": "v1", "Deployment": "apps/v1", "ClusterRole": "rbac.authorization.k8s.io/v1"}
_TYPES: Final = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}
_RULE: Final = {"apiGroups", "resources", "resourceNames", "verbs"}
_DEPLOYMENT: Final = {"replicas", "selector", "template", "strategy"}


def complaints(document: Document) -> list[str]:
    """What would not be accepted, or would be dropped in silence; a sentence each."""
    found = list(_metadata(document.get("metadata") or {}))
    if document.get("kind") in _VALIDATIONS:
        return found + list(_own(document))
    return found + list(_foreign(document))


def _metadata(metadata: Document) -> Iterator[str]:
    if not metadata.get("name"):
        yield "metadata.name is missing"
    yield from (f"metadata.{name} is not known" for name in set(metadata) - _METADATA)
    texts = [*(metadata.get("labels") or {}).values(), *(metadata.get("annotations") or {}).values()]
    yield from (f"{text!r} in labels or annotations is no text" for text in texts if not isinstance(text, str))


def _own(document: Document) -> Iterator[str]:
    definition = _definitions()[document["kind"]]
    version = definition["spec"]["versions"][0]
    if document["apiVersion"] != f"{definition['spec']['group']}/{version['name']}":
        yield f"apiVersion {document['apiVersion']} is not that of the kind"
    if (definition["spec"]["scope"] == "Namespaced") != ("namespace" in document["metadata"]):
        yield "metadata.namespace is missing, or too much"
    schema = version["schema"]["openAPIV3Schema"]
    without_metadata = {key: value for key, value in document.items() if key != "metadata"}
    misshapen = list(_unknown(schema, without_metadata, ""))
    yield from misshapen
    if misshapen:
        return  # what cannot be read cannot be judged
    if document["kind"] != "Egress":  # whose pod template has keywords that the stand-in does not know
        yield from faults(schema, document)
    yield from (f"{refusal.path}: {refusal.message}" for refusal in evaluate_rules(schema, document))
    yield from (f"{error.path}: {error.message}" for error in _VALIDATIONS[document["kind"]](document))


def _validate_source(source: Source) -> list[FieldError]:
    return validate_policy(EgressGatewayPolicy(metadata=source.metadata, spec=mirror_spec(source)))


def _foreign(document: Document) -> Iterator[str]:
    kind = document.get("kind", "")
    if document.get("apiVersion") != _VERSIONS.get(kind):
        yield f"{document.get('apiVersion')} {kind} is not known to these tests"
        return
    yield from (f"{name} is not known" for name in set(document) - _TOP[kind])
    if kind == "ClusterRole":
        yield from (f"rules.{name} is not known" for rule in document["rules"] for name in set(rule) - _RULE)
    if kind == "Deployment":
        spec = document["spec"]
        yield from (f"spec.{name} is not known" for name in set(spec) - _DEPLOYMENT)
        yield from _unknown(pod_template_schema(), spec["template"], "spec.template")
        labels = spec["template"]["metadata"]["labels"]
        if not spec["selector"]["matchLabels"].items() <= labels.items():
            yield "spec.selector does not select the template's pods"


def _unknown(schema: Document, value: Any, path: str) -> Iterator[str]:
    """Fields that the API server would drop without a word, and values of another type than the field's."""
    kind = _TYPES.get(schema.get("type", ""), object)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        yield f"{path} is no {schema['type']}"
        return
    if isinstance(value, dict) and "properties" in schema:
        for name, child in value.items():
            inner = schema["properties"].get(name)
            if inner is not None:
                yield from _unknown(inner, child, f"{path}.{name}")
            else:
                yield f"{path}.{name} is not known"
    if isinstance(value, list) and "items" in schema:
        for position, child in enumerate(value):
            yield from _unknown(schema["items"], child, f"{path}[{position}]")


@cache
def _definitions() -> Mapping[str, Document]:
    return {each["spec"]["names"]["kind"]: each for each in definitions(pod_template_schema()).values()}
