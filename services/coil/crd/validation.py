"""What a validation finds, in the API server's own notation, and its rules for labels and annotations in templates.

Source of the rules: k8s.io/apimachinery, `validation.IsQualifiedName`, `IsValidLabelValue`, `ValidateAnnotations`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from coil.crd.meta import LabelSelector
from coil.crd.names import LABEL_VALUE_LENGTH, is_object_name

_POSITION = re.compile(r"\[[0-9]+\]")


@dataclass(frozen=True, slots=True)
class FieldError:
    """`path` is as users write it (`spec.subnets[0].ipv4`); `message` starts in lower case."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def render_errors(errors: Sequence[FieldError]) -> str:
    """One line for a log, a condition or an admission answer."""
    return "; ".join(str(error) for error in errors)


def render_names(names: Sequence[str], *, shown: int = 5) -> str:
    """Objects in a sentence: the first `shown` of them, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def select_new(errors: Sequence[FieldError], before: Sequence[FieldError]) -> list[FieldError]:
    """What an update breaks anew. An entry of a list that was wrong before is no news at another position."""
    known = {(_POSITION.sub("[]", error.path), error.message) for error in before}
    return [error for error in errors if (_POSITION.sub("[]", error.path), error.message) not in known]


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


_VALUE_OPERATORS = ("In", "NotIn")
_OPERATORS = (*_VALUE_OPERATORS, "Exists", "DoesNotExist")


def validate_selector(selector: LabelSelector, *, path: str) -> Iterator[FieldError]:
    """What the API server would refuse of a selector of its own kinds."""
    yield from validate_labels(selector.match_labels, path=f"{path}.matchLabels")
    for position, requirement in enumerate(selector.match_expressions):
        place = f"{path}.matchExpressions[{position}]"
        if requirement.operator not in _OPERATORS:
            yield FieldError(f"{place}.operator", f"{requirement.operator!r} must be one of {', '.join(_OPERATORS)}")
        elif (requirement.operator in _VALUE_OPERATORS) != bool(requirement.values):
            yield FieldError(f"{place}.values", "In and NotIn need values, Exists and DoesNotExist have none")
        for value in requirement.values or ("",):
            yield from validate_labels({requirement.key: value}, path=place)


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
