"""docs/aws.md: its policies against the calls of the programs, its settings against coild's, and its tests exist."""

import re
from configparser import ConfigParser

import pytest

from coil.aws import ec2
from coil.eni.orphan import UNATTACHED
from coil.eni.surplus import SURPLUS_SECONDS
from coil.eni.tag import CLUSTER_TAG, SUBNET_TAG, SUBNET_VALUE
from integration.docs.page import DOCS, ROOT, read_pages
from tests.docs.aws_policy import REQUEST_TAG, RESOURCE_TAG, Statement, allowed, read_policies
from tests.docs.program_help import own_help
from tests.docs.test_command import SCHEMA
from tests.test_testing_map import names_in

[PAGE] = [page for page in read_pages() if page.name == "aws.md"]
NODES, CONTROLLER = read_policies()
TAGGING = "CreateTags"
"""Which EC2 asks for where an interface is created with tags; no call of its own."""
LOOKING = "Describe"
INTERFACES = "arn:aws:ec2:*:*:network-interface/*"


def test_the_nodes_policy_has_the_calls_that_the_client_makes() -> None:
    assert allowed(NODES) == {*ec2.METHODS, TAGGING}


def test_the_controllers_policy_is_a_part_of_it() -> None:
    assert allowed(CONTROLLER) < allowed(NODES)


@pytest.mark.parametrize("policy", [NODES, CONTROLLER], ids=["nodes", "controller"])
def test_what_changes_an_interface_is_limited_to_the_cluster(policy: list[Statement]) -> None:
    for statement in policy:
        changing = {action for action in statement.actions if not action.startswith(LOOKING)}
        if not changing:
            assert statement.resources == ("*",), "EC2 knows no resources for these"
            continue
        assert all(resource.startswith("arn:aws:ec2:*:*:") for resource in statement.resources)
        if any(resource.endswith((":network-interface/*", ":instance/*")) for resource in statement.resources):
            key = REQUEST_TAG if changing & {"CreateNetworkInterface", TAGGING} else RESOURCE_TAG
            assert f"{key}{CLUSTER_TAG}" in statement.tags, statement


def test_looking_and_changing_are_apart() -> None:
    for statement in [*NODES, *CONTROLLER]:
        assert len({action.startswith(LOOKING) for action in statement.actions}) == 1


def test_a_new_interface_is_tagged_at_its_creation_only() -> None:
    [tagging] = [statement for statement in NODES if TAGGING in statement.actions]
    assert tagging.actions == {TAGGING}
    assert tagging.resources == (INTERFACES,)
    assert tagging.tags["ec2:CreateAction"] == "CreateNetworkInterface"


def test_the_names_of_the_targets_are_the_charts_and_coilds() -> None:
    targets = set(SCHEMA["properties"]["aws"]["properties"]["targets"]["properties"])
    assert targets == set(re.findall(r"\b(?:[A-Z]+_)+(?:TARGET|ENI)\b", PAGE.prose))
    assert all(f"[{name}]" in own_help("coild") for name in targets)


def test_figures_and_tags_are_those_of_the_code() -> None:
    assert SURPLUS_SECONDS == 600, "the page says ten minutes"
    assert f"`{CLUSTER_TAG}`" in PAGE.prose
    assert f"`{SUBNET_TAG}` and the value `{SUBNET_VALUE}`" in " ".join(PAGE.prose.split())


def test_the_sweep_of_a_removed_cluster_finds_what_the_leader_would() -> None:
    """By the same tag and status as the collector, and none that is attached."""
    lines = [line for block in PAGE.blocks for line in block.text.splitlines()]
    [line] = [line for line in lines if line.startswith("aws ec2 describe-network-interfaces")]
    filters = dict(re.findall(r"Name=(\S+),Values=(\S+)", line))
    assert filters == {f"tag:{CLUSTER_TAG}": "blue", "status": UNATTACHED}


FILES = DOCS / "node-network" / "etc"


def test_the_files_for_nodes_are_those_of_the_table() -> None:
    named = set(re.findall(r"\]\(node-network/etc/([^)]+)\)", PAGE.prose))
    assert named == {str(path.relative_to(FILES)) for path in FILES.rglob("*") if path.is_file()}


def test_the_files_are_about_the_same_links() -> None:
    """What NetworkManager leaves alone is what systemd-networkd does; the page says where the reader's link goes."""
    networkd = read_file("systemd/network/05-coil.network")["Match"]
    manager = read_file("NetworkManager/conf.d/90-coil.conf")["device-coil"]
    drivers = [f"driver:{driver}" for driver in networkd["Driver"].split()]
    primary = networkd["Name"].removeprefix("!")
    assert manager["match-device"].split(";") == [*drivers, f"except:interface-name:{primary}"]
    assert f"`{primary}`" in PAGE.prose


def read_file(name: str) -> ConfigParser:
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # as systemd reads names
    parser.read_string((FILES / name).read_text())
    return parser


def complaints(heading: str) -> list[tuple[str, list[str]]]:
    """The rows of the table of complaints below that heading: what is complained of, and the tests."""
    _, _, section = PAGE.prose.partition(f"\n{heading}\n")
    rows = [line.strip("|").split("|") for line in section.partition("\n#")[0].splitlines() if line.startswith("| ")]
    return [(row[0].strip(), re.findall(r"`([^`]+)`", row[2])) for row in rows if row[0].strip() != "complaint"]


BEST_KNOWN = complaints("## Well-known complaints")
FROM_THE_FIELD = complaints("### From the field")


def test_the_ten_best_known_complaints_and_later_ones_are_there() -> None:
    assert len({complaint for complaint, _ in BEST_KNOWN}) == 10
    assert FROM_THE_FIELD


@pytest.mark.parametrize(("complaint", "tests"), [*BEST_KNOWN, *FROM_THE_FIELD])
def test_each_complaint_has_a_test(complaint: str, tests: list[str]) -> None:
    assert tests
    for test in tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), test
        assert not name or name in names_in(file), test
    assert any(test.startswith("integration/aws/") for test in tests), "one on the strict EC2"
