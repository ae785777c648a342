"""Least privilege, proven: what the chart grants is what the programs used while all other sessions tested them.

This session comes last. Its material is what the API servers of the others were really asked, and which of their tests
passed; a session that is run again brings its own anew. So after a change of a role or of a program: the sessions that
use it, then this one. Of a right whose test was not among them it says nothing.
"""

from collections.abc import Iterable, Mapping

import pytest

from integration.access.comparison import (
    Judgement,
    Run,
    describe_call,
    find_outside,
    find_untested,
    judge_use,
)
from integration.access.conftest import Summary
from integration.access.exemption import PROVOKED, UNSEEN
from integration.access.forcing_tests import FORCING_TESTS, FORCING_TESTS_ON_INSTANCES
from integration.access.right import POOL_VALUES, Right, chart_rights
from integration.cluster.audit_log import Call, load_calls
from integration.helm.chart import render
from integration.verdict.result import FOLDER, REPOSITORY, load_results

CALLS = REPOSITORY / "build" / "access"
"""One folder for each run of a session (noxfile.py)."""
INSTANCES = "aws_nodes"
"""The session of the profile aws-eni, and of nothing else; `make test` does not have it."""


@pytest.fixture(scope="module")
def rights() -> list[Right]:
    """What the chart grants with everything that it can install, which is not all together."""
    pools = render(POOL_VALUES)
    return list(dict.fromkeys([*chart_rights(pools), *chart_rights(render(None, "aws-eni"))]))


@pytest.fixture(scope="module")
def calls() -> dict[str, set[Call]]:
    """The calls of each run that made some."""
    loaded = {folder.name: load_calls(folder) for folder in sorted(CALLS.glob("*")) if folder.is_dir()}
    found = {session: made for session, made in loaded.items() if made}
    if not found:
        pytest.fail(f"no calls below {CALLS}: first the sessions that make some; `make test` has all", pytrace=False)
    return found


@pytest.fixture(scope="module")
def runs(calls: Mapping[str, set[Call]]) -> list[Run]:
    """Those that came to their end: one that was broken off, or is under way, has left no results."""
    names = [path.stem for path in sorted(FOLDER.glob("*.xml"))]
    return [
        Run(name=name, results=load_results(FOLDER / f"{name}.xml"), calls=calls.get(name, set())) for name in names
    ]


def test_what_the_programs_ask_is_granted_by_the_chart(rights: list[Right], calls: dict[str, set[Call]]) -> None:
    outside = [
        f"{session}: {describe_call(call)}"
        for session, made in calls.items()
        for call in find_outside(rights, made)
        if call.role or (call.account, call.verb, call.group, call.resource) not in PROVOKED
    ]
    if outside:
        said = [
            "calls that no role of the chart covers, by session. If the program needs the right, it is missing in",
            "charts/coil/templates/rbac-*.yaml. If a test asks for what is to be refused, say so in",
            "integration/access/exemption.py:",
        ]
        pytest.fail("\n".join([*said, *outside]), pytrace=False)


def test_what_the_chart_grants_is_asked_by_the_programs(rights: list[Right], runs: list[Run], summary: Summary) -> None:
    untested = find_untested(rights, FORCING_TESTS.keys() | UNSEEN.keys())
    judgement = judge_use((right for right in rights if right.key not in UNSEEN), FORCING_TESTS, runs)
    summary.add("rights", judgement)
    if untested or judgement.unused:
        said = [
            "rights that no program needs, as far as the tests tell.",
            "If the program makes no such call, take the right out of charts/coil/templates/rbac-*.yaml.",
            "If it does, name in integration/access/forcing_tests.py a test that does not pass without it, or, if no",
            "call can show it, say why in integration/access/exemption.py:",
            *describe_unused(untested, judgement),
        ]
        pytest.fail("\n".join(said), pytrace=False)


def test_the_profile_aws_eni_grants_coild_what_it_asks_on_instances_and_nothing_else(
    calls: dict[str, set[Call]], runs: list[Run], summary: Summary
) -> None:
    """The roles of this profile alone, against calls of nodes that have nothing else.

    The controllers are not judged: they serve pools and Egresses in each profile, and here nobody has any.
    """
    if INSTANCES not in calls:
        pytest.skip(f"no calls of the session {INSTANCES}")
    profile = [right for right in chart_rights(render(None, "aws-eni")) if right.account == "coild"]
    outside = [describe_call(call) for call in find_outside(profile, calls[INSTANCES])]
    untested = find_untested(profile, FORCING_TESTS_ON_INSTANCES)
    judgement = judge_use(profile, FORCING_TESTS_ON_INSTANCES, runs)
    summary.add("rights of coild on instances", judgement)
    assert (outside, describe_unused(untested, judgement)) == ([], []), (
        "calls that the profile's roles do not cover, and rights that nobody used"
    )


def describe_unused(untested: Iterable[Right], judgement: Judgement) -> list[str]:
    """A line for each right that should not be granted as things are."""
    without_test = [f"{right}: no test forces its use" for right in untested]
    unused = [f"{right}: not used in {run}, where {test} passed" for right, test, run in judgement.unused]
    return [*without_test, *unused]


def test_no_program_uses_what_the_api_server_warns_of(calls: dict[str, set[Call]]) -> None:
    """On the release that the sessions ran on; of a group's versions, some are deprecated long before they go."""
    deprecated = sorted({call for made in calls.values() for call in made if call.deprecated})
    assert [f"{describe_call(call)}, version {call.deprecated}" for call in deprecated] == []
