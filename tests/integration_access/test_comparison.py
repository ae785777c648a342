"""Rights of a chart against calls: what was not used, and what went beyond."""

from collections.abc import Iterable
from typing import Any

import pytest

from integration.access.comparison import Run, describe_call, find_outside, find_untested, judge_use
from integration.access.right import Right, chart_rights
from integration.cluster.audit_log import Call
from integration.helm.chart import Document, render
from integration.verdict.result import Outcome, TestResult

GROUP = "coil.cybozu.com"


def role(kind: str, name: str, *rules: dict[str, Any], namespace: str = "") -> list[Document]:
    """A role and its binding to the account `agent`."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return [
        {"kind": kind, "metadata": metadata, "rules": list(rules)},
        {
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"kind": kind, "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": "agent", "namespace": "kube-system"}],
        },
    ]


DOCUMENTS = [
    *role(
        "ClusterRole",
        "agent",
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]},
        {"apiGroups": [GROUP], "resources": ["pools/status"], "verbs": ["patch"]},
    ),
    *role(
        "Role",
        "agent",
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["own"], "verbs": ["get"]},
        namespace="kube-system",
    ),
    # Nobody's, until somebody binds it.
    {
        "kind": "ClusterRole",
        "metadata": {"name": "people"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
    },
]
RIGHTS = chart_rights(DOCUMENTS)


def call(verb: str, resource: str, *, group: str = "", account: str = "agent", **rest: str) -> Call:
    return Call(account=account, verb=verb, group=group, resource=resource, **rest)


USED = [
    call("get", "nodes", role="ClusterRole agent"),
    call("list", "nodes", role="ClusterRole agent"),
    call("patch", "pools/status", group=GROUP, role="ClusterRole agent"),
    call("get", "secrets", role="Role agent in kube-system"),
]


def test_rights_are_those_of_bound_roles() -> None:
    assert [str(right) for right in RIGHTS] == [
        "agent: get nodes (ClusterRole agent)",
        "agent: list nodes (ClusterRole agent)",
        f"agent: patch pools/status.{GROUP} (ClusterRole agent)",
        "agent: get secrets named own (Role agent in kube-system)",
    ]


TEST = "integration/test_agent.py::test_all_at_once"
TESTS = {right.key: TEST for right in RIGHTS}


def run(name: str, calls: Iterable[Call], **outcomes: Outcome) -> Run:
    """`outcomes` by the test's case; it has no cases if they are not given, and has passed."""
    cases = {f"{TEST}[{case}]": outcome for case, outcome in outcomes.items()} or {TEST: Outcome.PASSED}
    results = [
        TestResult(test=test, module="integration/test_agent.py", outcome=outcome, seconds=1.0)
        for test, outcome in cases.items()
    ]
    return Run(name=name, results=results, calls=list(calls))


def find_unused(rights: Iterable[Right], calls: Iterable[Call]) -> list[Right]:
    return [right for right, _, _ in judge_use(rights, TESTS, [run("all", calls)]).unused]


def test_everything_used_and_nothing_else() -> None:
    judgement = judge_use(RIGHTS, TESTS, [run("all", USED)])
    assert (judgement.used, judgement.unused, judgement.not_run) == (RIGHTS, [], [])
    assert find_outside(RIGHTS, USED) == []


@pytest.mark.parametrize("index", range(len(USED)))
def test_each_right_takes_its_own_call(index: int) -> None:
    assert find_unused(RIGHTS, USED[:index] + USED[index + 1 :]) == [RIGHTS[index]]


def test_who_watches_may_list() -> None:
    watch = call("watch", "nodes", role="ClusterRole agent")
    assert find_unused([RIGHTS[1]], [watch]) == []
    assert find_unused([RIGHTS[0]], [watch]) == [RIGHTS[0]]


@pytest.mark.parametrize(
    "other",
    [
        call("get", "nodes", role="ClusterRole other"),  # by which another role makes this one superfluous
        call("get", "nodes", account="other", role="ClusterRole agent"),
        call("get", "nodes", group=GROUP, role="ClusterRole agent"),
        call("get", "nodes/status", role="ClusterRole agent"),
        call("get", "nodes", name="n1"),  # refused
    ],
)
def test_another_call_is_no_use_of_a_right(other: Call) -> None:
    assert RIGHTS[0] in find_unused(RIGHTS, [other])


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [run("other", USED, one=Outcome.SKIPPED)],
        [run("broken", [], one=Outcome.FAILED)],
        [run("half", [], one=Outcome.PASSED, two=Outcome.FAILED)],
    ],
)
def test_a_right_whose_test_did_not_pass_is_not_judged(runs: list[Run]) -> None:
    judgement = judge_use(RIGHTS, TESTS, runs)
    assert (judgement.used, judgement.unused, judgement.not_run) == ([], [], [(right, TEST) for right in RIGHTS])


def test_a_case_may_be_named() -> None:
    tests = {RIGHTS[0].key: f"{TEST}[one]"}
    runs = [run("cases", [], one=Outcome.PASSED, two=Outcome.FAILED)]
    assert judge_use(RIGHTS, tests, runs).unused == [(RIGHTS[0], f"{TEST}[one]", "cases")]
    runs = [run("cases", [], one=Outcome.FAILED, two=Outcome.PASSED)]
    assert judge_use(RIGHTS, tests, runs).not_run == [(RIGHTS[0], f"{TEST}[one]")]


def test_calls_of_another_run_are_no_excuse() -> None:
    runs = [run("former", USED), run("latter", USED[1:]), run("skipped", [], one=Outcome.SKIPPED)]
    assert judge_use(RIGHTS, TESTS, runs).unused == [(RIGHTS[0], TEST, "latter")]


def test_a_right_without_a_test_is_found() -> None:
    tests = {right.key: TEST for right in RIGHTS[1:]}
    assert find_untested(RIGHTS, tests) == [RIGHTS[0]]
    assert judge_use(RIGHTS, tests, [run("all", [])]).unused[0][0] == RIGHTS[1]


@pytest.mark.parametrize(
    ("outside", "said"),
    [
        (
            call("get", "nodes", role="ClusterRole other"),
            "agent: get nodes, allowed by another's role: ClusterRole other",
        ),
        (
            call("delete", "pools", group=GROUP, name="blue"),
            f"agent: delete pools.{GROUP} blue, refused",
        ),
        (
            call("get", "secrets", namespace="kube-system", name="another"),
            "agent: get secrets another in kube-system, refused",
        ),
        (call("get", "secrets", namespace="default", name="own"), "agent: get secrets own in default, refused"),
        (
            call("list", "secrets", namespace="kube-system"),
            "agent: list secrets (all) in kube-system, refused",
        ),
    ],
)
def test_what_goes_beyond_is_found_and_said(outside: Call, said: str) -> None:
    assert find_outside(RIGHTS, [*USED, outside]) == [outside]
    assert describe_call(outside) == said


@pytest.mark.parametrize(
    "passed",
    [
        # The API server had not read its roles yet, or a test had taken them away.
        call("get", "nodes", name="n1"),
        call("get", "secrets", namespace="kube-system", name="own"),
        call("get", "pods", account="somebody", role="ClusterRole view"),
    ],
)
def test_what_the_chart_grants_or_is_not_about_is_not_beyond(passed: Call) -> None:
    assert find_outside(RIGHTS, [passed]) == []


def test_the_charts_rights_name_each_account_and_none_is_granted_twice() -> None:
    rights = chart_rights(render({"eip": {"enabled": True}, "routeSync": {"enabled": True}}))
    assert {right.account for right in rights} == {
        *("coild", "coil-ipam-controller", "coil-egress-controller", "coil-egress-node", "coil-egress"),
        "coil-test-nodes",
    }
    granted = [
        (right.account, right.verb, right.group, right.resource, right.namespace, right.names) for right in rights
    ]
    assert len(set(granted)) == len(granted)


def test_a_namespace_is_where_a_right_ends() -> None:
    (own,) = (right for right in RIGHTS if right.resource == "secrets")
    assert own == Right(
        account="agent",
        role="Role agent in kube-system",
        verb="get",
        group="",
        resource="secrets",
        names=("own",),
        namespace="kube-system",
    )
