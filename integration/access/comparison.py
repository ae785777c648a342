"""The chart's rights, the tests that force their use, and the programs' calls, held against each other. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from integration.access.right import Right, RightKey
from integration.cluster.audit_log import Call
from integration.verdict.result import Outcome, TestResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a session: its tests' results, and the calls that the programs made in it."""

    name: str
    results: Sequence[TestResult]
    calls: Collection[Call]

    def passed(self, test: str) -> bool:
        """Whether the test ran and passed: if it is named without parameters, no case of it may have failed."""
        outcomes = {each.outcome for each in self.results if test in (each.test, each.test.partition("[")[0])}
        return Outcome.PASSED in outcomes and Outcome.FAILED not in outcomes

    def used(self, right: Right) -> bool:
        """Whether something was allowed by the right.

        Who watches may list: an informer that streams its list reads it in pages when the stream breaks off.

        Of two rights that cover one call the API server names the first that it finds. One that another makes
        superfluous is thereby found as well.
        """
        asked = [*self.calls, *(replace(call, verb="list") for call in self.calls if call.verb == "watch")]
        return any(right.allowed(call) for call in asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What runs say of rights.

    `unused` has the test that passed without the right, and the runs in which it did; `not_run` has the test that did
    not pass.
    """

    used: Sequence[Right]
    unused: Sequence[tuple[Right, str, str]]
    not_run: Sequence[tuple[Right, str]]


def find_untested(rights: Iterable[Right], tests: Collection[RightKey]) -> list[Right]:
    """The rights that are in no table of tests or exemptions, in their order."""
    return [right for right in rights if right.key not in tests]


def judge_use(rights: Iterable[Right], tests: Mapping[RightKey, str], runs: Collection[Run]) -> Judgement:
    """Whether each right was used in each run in which the test passed that forces it.

    In that very run: the calls of another one may be of another state of the checkout. A right whose test ran nowhere,
    or did not pass, is not judged; nor is one that has no test.
    """
    used, unused, not_run = [], [], []
    for right in rights:
        test = tests.get(right.key)
        if test is None:
            continue
        passed = [run for run in runs if run.passed(test)]
        missed = [run.name for run in passed if not run.used(right)]
        if missed:
            unused.append((right, test, ", ".join(missed)))
        elif passed:
            used.append(right)
        else:
            not_run.append((right, test))
    return Judgement(used=used, unused=unused, not_run=not_run)


def find_outside(rights: Collection[Right], calls: Iterable[Call]) -> list[Call]:
    """The calls that no right of the chart covers, sorted: allowed by somebody else's role, or refused.

    A call that was refused although the chart grants it is not among them: an API server refuses everybody until it
    has read its roles, and tests take roles away.
    """
    accounts = {right.account for right in rights}
    return sorted(
        call
        for call in calls
        if call.account in accounts
        and not any(right.allowed(call) if call.role else right.would_allow(call) for right in rights)
    )


def describe_call(call: Call) -> str:
    """A call that was found outside, in a sentence's length."""
    group = f".{call.group}" if call.group else ""
    if call.role:
        return f"{call.account}: {call.verb} {call.resource}{group}, allowed by another's role: {call.role}"
    place = f" in {call.namespace}" if call.namespace else ""
    return f"{call.account}: {call.verb} {call.resource}{group} {call.name or '(all)'}{place}, refused"
