"""What a check finds, and how a person or a program reads it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec
import msgspec.yaml

from coil.runtime.terminal import printable


class Severity(StrEnum):
    """In the order in which they are told."""

    MUST_MEND = "must-mend"
    """Something would not work that works now."""
    CHANGES = "changes"
    """Something works in another way, or needs a value or a command."""
    NOTE = "note"
    """Nothing needs to be done."""


TITLES: Final = {
    Severity.MUST_MEND: "Must be mended first",
    Severity.CHANGES: "Changes",
    Severity.NOTE: "To know",
}
EXIT_CODES: Final = {Severity.MUST_MEND: 4, Severity.CHANGES: 3}
"""0 if there is neither. 1 is a check that could not be made, 2 a flag that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`subject` is the kind and name of an object, `remedy` what to do; "" where nothing needs to be done.

    `values` are those of the chart that keep what is there now.
    """

    severity: Severity
    subject: str
    message: str
    remedy: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


def exit_code(findings: Iterable[Finding]) -> int:
    """That of the most severe finding."""
    return max((EXIT_CODES.get(finding.severity, 0) for finding in findings), default=0)


def merge_values(findings: Iterable[Finding]) -> dict[str, Any]:
    """The values of all findings; lists are joined, and of two values for one thing the first counts."""
    merged: dict[str, Any] = {}
    for finding in findings:
        _merge(merged, finding.values)
    return merged


def render_json(findings: Iterable[Finding]) -> str:
    """A document with `findings` and `values`, whose fields are a contract."""
    found = list(findings)
    document = {
        "findings": [
            {
                "severity": str(finding.severity),
                "subject": finding.subject,
                "message": finding.message,
                "remedy": finding.remedy,
            }
            for finding in found
        ],
        "values": merge_values(found),
    }
    return json.dumps(document, indent=2) + "\n"


def render_text(findings: Iterable[Finding]) -> str:
    """For people: the most severe first, then the values."""
    found = list(findings)
    lines: list[str] = []
    for severity in Severity:
        told = [finding for finding in found if finding.severity is severity]
        if not told:
            continue
        lines += [f"{TITLES[severity]} ({len(told)})", ""]
        for finding in told:
            # Names, images and annotations are whoever's who wrote them.
            lines.append("  " + printable(f"{finding.subject}: {finding.message}"))
            if finding.remedy:
                lines.append("    " + printable(finding.remedy))
        lines.append("")
    if values := merge_values(found):
        lines += ["Values for the chart:", ""]
        lines += [f"  {line}" for line in msgspec.yaml.encode(values).decode().splitlines()]
        lines.append("")
    if not lines:
        lines = ["Nothing of Coil v2 or of egressgateway was found in this cluster.", ""]
    return "\n".join(lines)


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        present = into.get(key)
        if isinstance(value, Mapping):
            _merge(into.setdefault(key, {}), value)
        elif isinstance(present, list):
            present += [entry for entry in value if entry not in present]
        elif present is None:
            into[key] = list(value) if isinstance(value, list) else value
