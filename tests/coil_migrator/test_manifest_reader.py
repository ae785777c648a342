"""What a file of manifests means, and files that nobody should have to wait for."""

import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from coil_migrator import manifest_reader
from coil_migrator.manifest_reader import STANDARD_INPUT, ManifestError, parse_manifests, read_manifests

STREAM = """\
# The first.
a: 1
---
# The second.
b: 10:20:30
...
--- # The third.
c: 2024-01-01
---
---
{d: 1e3, e: 1:30.5}
# The end.
"""


def values(text: str) -> list[Any]:
    return [manifest.value for manifest in parse_manifests(text, name="f")]


def test_a_stream_is_its_documents_and_their_texts() -> None:
    found = parse_manifests(STREAM, name="f")
    assert [each.value for each in found] == [
        {"a": 1},
        {"b": "10:20:30"},
        {"c": "2024-01-01"},
        None,
        {"d": "1e3", "e": "1:30.5"},
    ]
    assert "".join(each.text for each in found) == STREAM
    assert found[0].text == "# The first.\na: 1\n"
    assert found[1].place == "f, document 2"


def test_an_empty_file_has_no_document() -> None:
    assert values("") == values("# nothing\n") == []


DOCUMENTS = st.lists(st.dictionaries(st.sampled_from("abc"), st.text(st.characters(codec="ascii"), max_size=9)))


@given(DOCUMENTS, st.sampled_from(["---\n", "--- # what\n", "# x\n---\n", "...\n---\n"]))
def test_no_text_is_lost(documents: list[dict[str, str]], between: str) -> None:
    text = between.join(yaml.safe_dump(each) for each in documents)
    found = parse_manifests(text, name="f")
    assert [each.value for each in found] == documents
    assert "".join(each.text for each in found) == text


BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdef", "bcdefg", strict=True)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 10_000, "too deeply nested"),
        ("a: [*b]", "undefined alias"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: &a [*a]", "more than 1000000 values"),
        (BOMB, "document 1 has more than 1000000 values"),
        ("a: \x00", "unacceptable character"),
        ("a: 1\n---\nb: [", "f: while parsing"),
    ],
)
def test_what_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(ManifestError, match=r"^f: ") as raised:
        parse_manifests(text, name="f")
    assert words in str(raised.value)


def test_files_and_standard_input_are_read_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: 1")
    found = read_manifests([file, STANDARD_INPUT], io.BytesIO(b"b: 2"))
    assert [(each.place, each.value) for each in found] == [
        (f"{file}, document 1", {"a": 1}),
        ("standard input, document 1", {"b": 2}),
    ]


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ManifestError, match="No such file"):
        read_manifests([tmp_path / "none.yaml"])
    with pytest.raises(ManifestError, match=r"standard input: .*utf-8"):
        read_manifests([STANDARD_INPUT], io.BytesIO(b"\xff\xfe"))
    monkeypatch.setattr(manifest_reader, "MAX_BYTES", 2**20)
    assert read_manifests([STANDARD_INPUT], io.BytesIO(b"#" * 2**20)) == []
    with pytest.raises(ManifestError, match="has more than 1 MiB"):
        read_manifests([STANDARD_INPUT], io.BytesIO(b"#" * (2**20 + 1)))
