"""Least privilege, proven: what the chart grants is what the programs used while all other sessions tested them.

This session comes last. Its material is what the API servers of the others were really asked; a session that is run
again brings its own anew. So after a change of a role or of a program: the sessions that use it, then this one.
"""

from pathlib import Path

import pytest

from integration.access.comparison import describe_call, find_outside, find_unused
from integration.access.exemption import PROVOKED, UNSEEN, UNSEEN_ON_INSTANCES
from integration.access.right import Right, chart_rights
from integration.cluster.audit_log import Call, load_calls
from integration.helm.chart import render

CALLS = Path(__file__).resolve().parents[2] / "build" / "access"
"""One folder for each session (noxfile.py)."""
INSTANCES = "aws_nodes"
"""The session of the profile aws-eni, and of nothing else; `make test` does not have it."""


@pytest.fixture(scope="module")
def rights() -> list[Right]:
    """What the chart grants with everything that it can install, which is not all together."""
    pools = render({"eip": {"enabled": True}, "routeSync": {"enabled": True}})
    return list(dict.fromkeys([*chart_rights(pools), *chart_rights(render(None, "aws-eni"))]))


@pytest.fixture(scope="module")
def calls() -> dict[str, set[Call]]:
    """The calls of each session that made some."""
    loaded = {folder.name: load_calls(folder) for folder in sorted(CALLS.glob("*")) if folder.is_dir()}
    found = {session: made for session, made in loaded.items() if made}
    if not found:
        pytest.fail(f"no calls below {CALLS}: first the sessions that make some; `make test` has all", pytrace=False)
    return found


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


def test_what_the_chart_grants_is_asked_by_the_programs(rights: list[Right], calls: dict[str, set[Call]]) -> None:
    unused = [
        str(right)
        for right in find_unused(rights, set[Call]().union(*calls.values()))
        if (right.role, right.verb, right.group, right.resource) not in UNSEEN
    ]
    if unused:
        said = [
            f"rights that no program used in the sessions that were run ({', '.join(calls)}).",
            "If the program makes no such call, take the right out of charts/coil/templates/rbac-*.yaml.",
            "If it does, and no test can bring it about, say why in integration/access/exemption.py:",
        ]
        pytest.fail("\n".join([*said, *unused]), pytrace=False)


def test_the_profile_aws_eni_grants_coild_what_it_asks_on_instances_and_nothing_else(
    calls: dict[str, set[Call]],
) -> None:
    """The roles of this profile alone, against calls of nodes that have nothing else.

    The controllers are not judged: they serve pools and Egresses in each profile, and here nobody has any.
    """
    if INSTANCES not in calls:
        pytest.skip(f"no calls of the session {INSTANCES}")
    profile = [right for right in chart_rights(render(None, "aws-eni")) if right.account == "coild"]
    outside = [describe_call(call) for call in find_outside(profile, calls[INSTANCES])]
    unused = [
        str(right)
        for right in find_unused(profile, calls[INSTANCES])
        if (right.role, right.verb, right.group, right.resource) not in UNSEEN_ON_INSTANCES
    ]
    assert (outside, unused) == ([], []), "calls that the profile's roles do not cover, and rights that nobody used"


def test_no_program_uses_what_the_api_server_warns_of(calls: dict[str, set[Call]]) -> None:
    """On the release that the sessions ran on; of a group's versions, some are deprecated long before they go."""
    deprecated = sorted({call for made in calls.values() for call in made if call.deprecated})
    assert [f"{describe_call(call)}, version {call.deprecated}" for call in deprecated] == []


def test_every_exemption_is_of_a_right_that_is_granted(rights: list[Right]) -> None:
    granted = {(right.role, right.verb, right.group, right.resource) for right in rights}
    assert UNSEEN.keys() | UNSEEN_ON_INSTANCES.keys() <= granted
