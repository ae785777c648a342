"""What `kubectl coil connectivity` tells, as a document. The names of the fields are a contract."""

from enum import StrEnum

from coil.page.document import Document


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It could not be tried; `detail` says why."""


class CheckDocument(Document, frozen=True, kw_only=True):
    """One line. `family` is IPv4, IPv6 or ""; `target` a URL of `coil.page.probe_answer`; `seconds` how long the answer
    took. `detail` says what was expected and what came, or why nothing was tried.
    """

    name: str
    family: str
    client: str
    target: str
    outcome: Outcome
    detail: str
    seconds: float


class ConnectivityDocument(Document, frozen=True, kw_only=True):
    """`namespace` is where it was tried; `left_over` whether it is still there."""

    namespace: str
    nodes: tuple[str, ...]
    checks: tuple[CheckDocument, ...]
    left_over: bool

    @property
    def passed(self) -> bool:
        return not self.left_over and all(check.outcome is not Outcome.FAILED for check in self.checks)
