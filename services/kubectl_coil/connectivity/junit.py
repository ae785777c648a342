"""The document of `kubectl coil connectivity` as JUnit's XML, which CI systems read."""

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from coil.runtime.terminal import printable
from kubectl_coil.connectivity.document import CheckDocument, ConnectivityDocument, Outcome


def render_junit(document: ConnectivityDocument) -> str:
    """One test suite. Control characters, which XML cannot have, are replaced."""
    checks = document.checks
    suite = Element(
        "testsuite",
        name="kubectl coil connectivity",
        tests=str(len(checks)),
        failures=str(sum(check.outcome is Outcome.FAILED for check in checks)),
        skipped=str(sum(check.outcome is Outcome.SKIPPED for check in checks)),
        time=f"{sum(check.seconds for check in checks):.3f}",
    )
    for check in checks:
        _add(suite, check)
    indent(suite)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{tostring(suite, encoding="unicode")}\n'


def _add(suite: Element, check: CheckDocument) -> None:
    name = " ".join(filter(None, (check.name, check.family, check.target)))
    case = SubElement(suite, "testcase", classname="connectivity", name=printable(name), time=f"{check.seconds:.3f}")
    if check.outcome is Outcome.FAILED:
        SubElement(case, "failure", message=printable(check.detail))
    elif check.outcome is Outcome.SKIPPED:
        SubElement(case, "skipped", message=printable(check.detail))
