"""Commands in the pages: programs, subcommands and flags exist, values are the chart's, files are there."""

import json
import re
from functools import cache
from typing import Any

import pytest
import yaml
from botocore import xform_name
from botocore.session import get_session

from coil_migrator.main import USAGE as MIGRATOR_USAGE
from integration.docs.command import Command, parse_commands
from integration.docs.page import COMMANDS, ROOT, Block, ByHand, Place, Run, read_pages, runnable_blocks
from integration.helm.chart import CHART
from tests.docs.program_help import foreign_flags, subcommand

PAGES = read_pages()
COMMAND_BLOCKS = [block for page in PAGES for block in page.blocks if block.language == COMMANDS]
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
ON_A_NODE = {"birdc", "curl", "ip", "iptables", "ls", "modinfo", "modprobe", "nft", "sysctl"}
DOCKER = {"build", "buildx", "compose", "cp", "create", "push", "rm"}
AWS_GLOBAL_FLAGS = {"--output", "--query"}
VARIABLES = {
    "BLOCK",
    "CONF_DIR",
    "FILE",
    "FOLDER",
    "INTERFACE",
    "NAMESPACE",
    "NODE",
    "POD",
    "POOL",
    "REPOSITORY",
    "USER",
    "VALUES",
    "VERSION",
}


def is_value(path: str) -> bool:
    """Whether the chart has a value of that path, such as `ipam.replicas`."""
    schema = SCHEMA
    for name in path.split("."):
        if "$ref" in schema:
            schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
        schema = schema.get("properties", {}).get(name)
        if schema is None:
            return False
    return True


@cache
def aws_flags(service: str, command: str) -> set[str]:
    """Those of a command of the AWS CLI, which makes its commands from the models that the library has."""
    model = get_session().get_service_model(service)
    [operation] = [name for name in model.operation_names if xform_name(name, "-") == command]
    members = model.operation_model(operation).input_shape.members
    return AWS_GLOBAL_FLAGS | {f"--{xform_name(member, '-')}" for member in members}


@pytest.mark.parametrize("block", COMMAND_BLOCKS, ids=str)
def test_it_is_said_whether_tests_execute_it(block: Block) -> None:
    assert isinstance(block.mark, Run | ByHand)


@pytest.mark.parametrize("block", COMMAND_BLOCKS, ids=str)
def test_every_command_can_be_given(block: Block) -> None:
    commands = parse_commands(block.text)
    assert commands or "=" in block.text
    for command in commands:
        check(command)
    on_a_node = isinstance(block.mark, Run) and block.mark.place is Place.NODE
    assert not on_a_node or {command.program for command in commands} <= ON_A_NODE


def check(command: Command) -> None:
    if command.program in ("kubectl", "helm"):
        flags = foreign_flags(subcommand(command.words))
        assert flags, f"{command.words} is no subcommand"
        assert set(command.flags()) <= flags, command.words
    elif command.program == "aws":
        assert set(command.flags()) <= aws_flags(*command.words[1:3]), command.words
    elif command.program == "coil-migrator":
        assert f"  {command.words[1]} " in MIGRATOR_USAGE, command.words
    elif command.program == "docker":
        assert command.words[1] in DOCKER
    elif command.program == "cat":
        assert yaml.safe_load(command.document)["kind"] == "Kustomization"
    else:
        assert command.program in ON_A_NODE, command.words
    for text in command.option_values("--set", "--set-string"):
        assert is_value(text.partition("=")[0]), text
    for text in command.option_values("--values", "--filename", "--file"):
        assert text.startswith("$") or (ROOT / text).exists(), text


@pytest.mark.parametrize("block", COMMAND_BLOCKS, ids=str)
def test_what_is_to_be_set_first_is_known(block: Block) -> None:
    assert set(re.findall(r"\$\{?(\w+)", block.text)) <= VARIABLES


def test_a_chart_is_installed_from_where_it_is() -> None:
    commands = [command for block in COMMAND_BLOCKS for command in parse_commands(block.text)]
    charts = [words for command in commands for words in command.words if words.startswith("charts/")]
    assert charts
    assert all((ROOT / chart).exists() for chart in charts)


def test_names_are_given_once_and_some_blocks_are_executed() -> None:
    found = runnable_blocks(PAGES)
    assert {"default-pool", "upgrade", "clean-up", "uninstall", "warnings"} <= set(found)


@pytest.mark.parametrize(
    "words", [["kubectl", "gett", "pods"], ["kubectl", "rollout", "statuss", "x"], ["helm", "instal", "coil"]]
)
def test_a_subcommand_that_does_not_exist_is_found(words: list[str]) -> None:
    assert foreign_flags(subcommand(words)) == frozenset()


def test_a_flag_that_does_not_exist_is_found() -> None:
    assert "--reuse-values" in foreign_flags(("helm", "upgrade"))
    assert "--reuse-value" not in foreign_flags(("helm", "upgrade"))
    assert {"-o", "--output", "--wait"} <= foreign_flags(("kubectl", "coil", "status"))
    assert "--namespace" in foreign_flags(("kubectl", "coil", "ipam", "show"))
    assert not foreign_flags(("kubectl", "coil", "stratus"))
    assert {"-n", "--namespace", "--timeout"} <= foreign_flags(("kubectl", "rollout", "status"))
