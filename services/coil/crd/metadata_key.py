"""The API server's rules for labels and annotations, as far as somebody writes them into a template of ours.

Source: k8s.io/apimachinery, `validation.IsQualifiedName`, `IsValidLabelValue`, `ValidateAnnotations`.
"""

import re
from collections.abc import Iterator, Mapping

from coil.crd.field_error import FieldError
from coil.crd.names import LABEL_VALUE_LENGTH, is_object_name

ANNOTATIONS_BYTES = 256 * 1024
"""Of all keys and values together."""

_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_WORD = "letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"


def validate_labels(labels: Mapping[str, str], *, path: str) -> Iterator[FieldError]:
    """What the API server would refuse of `labels`."""
    for key, value in labels.items():
        if fault := _key_fault(key):
            yield FieldError(path, fault)
        if len(value) > LABEL_VALUE_LENGTH or (value and not _NAME.fullmatch(value)):
            message = f"the value {value!r} must have at most {LABEL_VALUE_LENGTH} characters: {_WORD}"
            yield FieldError(f"{path}[{key}]", message)


def validate_annotations(annotations: Mapping[str, str], *, path: str) -> Iterator[FieldError]:
    """What the API server would refuse of `annotations`."""
    for key in annotations:
        # The case of a prefix does not matter, unlike that of a label.
        if fault := _key_fault(key.lower()):
            yield FieldError(path, fault)
    if sum(len(text.encode()) for item in annotations.items() for text in item) > ANNOTATIONS_BYTES:
        yield FieldError(path, f"must not have more than {ANNOTATIONS_BYTES} bytes")


def _key_fault(key: str) -> str | None:
    prefix, slash, name = key.rpartition("/")
    if slash and not is_object_name(prefix):
        return f"the key {key!r} must have the name of a domain before its '/', in lower case"
    if len(name) > LABEL_VALUE_LENGTH or not _NAME.fullmatch(name):
        return f"the key {key!r} must have a name of at most {LABEL_VALUE_LENGTH} characters: {_WORD}"
    return None
