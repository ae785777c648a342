from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.meta import ObjectMeta
from coil_migrator.manifest import render_document, render_manifests
from coil_migrator.manifest_reader import parse_manifests


def pool(name: str, bits: int, *subnets: str) -> AddressPool:
    spec = AddressPoolSpec(block_size_bits=bits, subnets=tuple(SubnetSet(ipv4=subnet) for subnet in subnets))
    return AddressPool(metadata=ObjectMeta(name=name), spec=spec)


def block(name: str, index: int, ipv4: str, **labels: str) -> AddressBlock:
    return AddressBlock(metadata=ObjectMeta(name=name, labels=labels), index=index, ipv4=ipv4)


def test_the_text() -> None:
    text = render_manifests(
        [pool("default", 5, "10.1.0.0/16", "10.2.0.0/16")], [block("default-0-v1", 0, "10.1.0.0/27", a="b")]
    )
    assert (
        text
        == """\
---
apiVersion: "coil.cybozu.com/v2"
kind: "AddressPool"
metadata:
  name: "default"
spec:
  blockSizeBits: 5
  subnets:
  - ipv4: "10.1.0.0/16"
  - ipv4: "10.2.0.0/16"
---
apiVersion: "coil.cybozu.com/v2"
kind: "AddressBlock"
metadata:
  name: "default-0-v1"
  labels:
    a: "b"
index: 0
ipv4: "10.1.0.0/27"
"""
    )


def test_nothing() -> None:
    assert render_manifests([], []) == ""


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), VALUES, min_size=1, max_size=3))
def test_any_document_is_read_back_as_it_was(document: dict[str, Any]) -> None:
    [found] = parse_manifests(render_document(document), name="f")
    assert found.value == document


def test_what_other_readers_take_for_numbers_and_booleans_is_in_quotes() -> None:
    document: dict[Any, Any] = {"on": "1e3", "12": ["yes", {}, [], None, [1, "é\U0001f600"]], 5: True}
    text = render_document(document)
    assert (
        text
        == """\
---
"on": "1e3"
"12":
- "yes"
- {}
- []
- null
- - 1
  - "\\U000000e9\\U0001f600"
"5": true
"""
    )
    with pytest.raises(ValueError, match="JSON compliant"):
        render_document({"a": float("nan")})


ASCII = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E))


@given(ASCII.filter(bool), st.integers(0, 2**40), st.lists(ASCII, min_size=1, max_size=3))
def test_any_text_is_read_back_as_it_was(name: str, number: int, subnets: list[str]) -> None:
    found: list[dict[str, Any]] = list(
        yaml.safe_load_all(render_manifests([pool(name, number, *subnets)], [block(name, number, subnets[0], l=name)]))
    )
    first, second = found
    assert (first["metadata"]["name"], first["spec"]["blockSizeBits"]) == (name, number)
    assert [entry["ipv4"] for entry in first["spec"]["subnets"]] == subnets
    assert msgspec.convert(second, AddressBlock) == block(name, number, subnets[0], l=name)
