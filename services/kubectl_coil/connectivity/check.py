"""One thing that a pod is to reach, or not to reach, and whether what it says of it is right. Pure."""

from collections.abc import Collection
from dataclasses import dataclass

from coil.page.probe_answer import ProbeAnswer
from kubectl_coil.connectivity.document import CheckDocument, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`seen_as` are the addresses of which the other side is to see one, empty: any answer will do. With `error`, the
    attempt is to fail with this name of an errno.
    """

    name: str
    client: str
    target: str
    version: int = 0
    """Of IP; 0 where that is left to the pod."""
    seen_as: Collection[str] = ()
    error: str = ""
    settles_in: float = 0.0
    """Seconds in which it may fail and be tried again: what was created for it is not on each node at once."""

    @property
    def family(self) -> str:
        return f"IPv{self.version}" if self.version else ""

    def judge(self, answer: ProbeAnswer) -> CheckDocument:
        """By what the client says."""
        if self.error:
            right = answer.error == self.error
            detail = (
                f"fails with {answer.error}" if right else f"fails with {answer.error or 'nothing'}, not {self.error}"
            )
        elif answer.error:
            right, detail = False, answer.error
        elif self.seen_as and answer.answer not in self.seen_as:
            right, detail = False, f"seen as {answer.answer}, not {' or '.join(sorted(self.seen_as))}"
        else:
            right, detail = True, f"seen as {answer.answer}" if self.seen_as else answer.answer
        return self._document(Outcome.PASSED if right else Outcome.FAILED, detail, answer.seconds)

    def fail(self, reason: str) -> CheckDocument:
        """It could not be asked."""
        return self._document(Outcome.FAILED, reason, 0.0)

    def _document(self, outcome: Outcome, detail: str, seconds: float) -> CheckDocument:
        return CheckDocument(
            name=self.name,
            family=self.family,
            client=self.client,
            target=self.target,
            outcome=outcome,
            detail=detail,
            seconds=seconds,
        )


def skipped(name: str, reason: str) -> CheckDocument:
    """What could not be tried at all."""
    return CheckDocument(
        name=name, family="", client="", target="", outcome=Outcome.SKIPPED, detail=reason, seconds=0.0
    )


def failed(name: str, reason: str) -> CheckDocument:
    """What had to be there to try it is not."""
    return CheckDocument(name=name, family="", client="", target="", outcome=Outcome.FAILED, detail=reason, seconds=0.0)
