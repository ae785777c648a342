"""The CRD documents: in step with the structs, with the committed files, and structural."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import (
    AddressPool,
    AddressPoolSpec,
    AddressPoolStatus,
    PoolCondition,
    SubnetSet,
    Usage,
)
from coil.crd.block_request import BlockRequest, BlockRequestSpec, BlockRequestStatus
from coil.crd.egress import Egress, EgressSpec, EgressStatus
from coil.crd.meta import Condition
from coil.crd.schema import definitions
from integration.generate import CRDS, render_files
from integration.pod_template_schema import pod_template_schema

POD_TEMPLATE = pod_template_schema()
DEFINITIONS = definitions(POD_TEMPLATE)
ANNOTATION_BYTES = 256 * 1024


def schema_of(plural: str) -> dict[str, Any]:
    (version,) = DEFINITIONS[f"coil.cybozu.com_{plural}.yaml"]["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def inside(schema: dict[str, Any], *path: str) -> dict[str, Any]:
    for part in path:
        schema = schema["items"] if part == "[]" else schema["properties"][part]
    return schema


@pytest.mark.parametrize(
    ("schema", "struct"),
    [
        (schema_of("addresspools"), AddressPool),
        (inside(schema_of("addresspools"), "spec"), AddressPoolSpec),
        (inside(schema_of("addresspools"), "spec", "subnets", "[]"), SubnetSet),
        (inside(schema_of("addresspools"), "status"), AddressPoolStatus),
        (inside(schema_of("addresspools"), "status", "blocks"), Usage),
        (inside(schema_of("addresspools"), "status", "addresses"), Usage),
        (inside(schema_of("addresspools"), "status", "conditions", "[]"), PoolCondition),
        (schema_of("addressblocks"), AddressBlock),
        (schema_of("egresses"), Egress),
        (inside(schema_of("egresses"), "spec"), EgressSpec),
        (inside(schema_of("egresses"), "status"), EgressStatus),
        (schema_of("blockrequests"), BlockRequest),
        (inside(schema_of("blockrequests"), "spec"), BlockRequestSpec),
        (inside(schema_of("blockrequests"), "status"), BlockRequestStatus),
        (inside(schema_of("blockrequests"), "status", "conditions", "[]"), Condition),
    ],
)
def test_properties_are_the_fields_of_the_structs(schema: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    fields = msgspec.structs.fields(struct)
    assert set(schema["properties"]) - {"apiVersion", "kind"} == {field.encode_name for field in fields}
    required = {field.encode_name for field in fields if field.required}
    assert required <= set(schema.get("required", ())) | {"metadata"}


def walk(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")


@pytest.mark.parametrize("plural", ["addresspools", "addressblocks", "blockrequests", "egresses"])
def test_every_field_has_a_type_and_a_description(plural: str) -> None:
    for path, schema in walk(schema_of(plural), ""):
        assert "type" in schema or "x-kubernetes-int-or-string" in schema, path
        if path.startswith(".spec.template."):
            assert "description" not in schema, "the definition would outgrow client-side apply"
            continue
        assert "description" in schema or path == ".metadata", path


def test_the_committed_files_are_the_generated_ones() -> None:
    rendered = {path: text for path, text in render_files().items() if path.parent == CRDS}
    assert {path: path.read_text() for path in rendered} == rendered
    assert set(CRDS.iterdir()) == set(rendered)
    assert [yaml.safe_load(text) for text in rendered.values()] == list(DEFINITIONS.values())


def test_the_largest_definition_fits_client_side_apply_by_far() -> None:
    # kubectl writes all of it, as JSON, into an annotation.
    sizes = {name: len(msgspec.json.encode(document)) for name, document in DEFINITIONS.items()}
    assert max(sizes.values()) < ANNOTATION_BYTES / 3, sizes


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        (("containers", "[]", "resources", "limits"), {"type": "object", "additionalProperties": "quantity"}),
        (("overhead",), {"type": "object", "additionalProperties": "quantity"}),
        (("volumes", "[]", "emptyDir", "sizeLimit"), "quantity"),
        (("containers", "[]", "readinessProbe", "httpGet", "port"), "int or string"),
        (("containers", "[]", "env", "[]", "valueFrom", "resourceFieldRef", "divisor"), "quantity"),
        (("terminationGracePeriodSeconds",), {"type": "integer", "format": "int64"}),
        (("nodeSelector",), {"type": "object", "additionalProperties": {"type": "string"}}),
    ],
)
def test_fields_of_router_pods(path: tuple[str, ...], schema: Any) -> None:
    def name(found: dict[str, Any]) -> Any:
        if found.get("x-kubernetes-int-or-string"):
            return "quantity" if "pattern" in found else "int or string"
        values = found.get("additionalProperties")
        return found if values is None else found | {"additionalProperties": name(values)}

    assert name(inside(POD_TEMPLATE, "spec", *path)) == schema


def test_every_object_of_a_router_pod_keeps_newer_fields() -> None:
    for path, schema in walk(POD_TEMPLATE, ""):
        if "properties" in schema:
            assert schema["x-kubernetes-preserve-unknown-fields"] is True, path


def test_router_pods_need_no_containers_of_the_user() -> None:
    assert "required" not in POD_TEMPLATE["properties"]["spec"]
