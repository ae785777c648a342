"""metav1.LabelSelector, as it stands in specs, and what it selects (apimachinery, `LabelSelectorAsSelector`)."""

from collections.abc import Mapping

import msgspec

from coil.crd.meta import Struct


class Requirement(Struct, frozen=True, kw_only=True):
    """`operator` is In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(Struct, frozen=True, kw_only=True):
    """All of it must hold; an empty selector selects everything."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.match_labels and not self.match_expressions

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether something with these labels is meant. An operator that does not exist selects nothing."""
        plain = all(labels.get(key) == value for key, value in self.match_labels.items())
        return plain and all(_holds(requirement, labels) for requirement in self.match_expressions)


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False
