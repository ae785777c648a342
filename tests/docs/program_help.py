"""Which subcommands and flags programs have, as they say themselves."""

import io
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import cache
from typing import Any, Final

import click
from click.testing import CliRunner

import coil_egress_agent.egress.settings
import coil_egress_agent.eip.settings
import coil_egress_controller.settings
import coil_ipam_controller.settings
import coil_migrator.settings
import coil_node_dump.settings
import coil_raven.settings
import coild.settings
from coil.runtime.flag import parse_settings
from integration.cluster.control_plane import find_kubectl
from integration.helm.program import find_helm
from kubectl_coil.main import cli

OURS: Final[Mapping[str, type[Any]]] = {
    "coild": coild.settings.Settings,
    "coil-ipam-controller": coil_ipam_controller.settings.Settings,
    "coil-egress-controller": coil_egress_controller.settings.Settings,
    "coil-egress-agent": coil_egress_agent.egress.settings.Settings,
    "coil-egress-agent-node": coil_egress_agent.eip.settings.Settings,
    "coil-raven": coil_raven.settings.Settings,
    "coil-node-dump": coil_node_dump.settings.Settings,
    "coil-migrator check": coil_migrator.settings.CheckSettings,
    "coil-migrator convert": coil_migrator.settings.ConvertSettings,
    "coil-migrator dump": coil_migrator.settings.DumpSettings,
    "coil-migrator replace": coil_migrator.settings.ReplaceSettings,
}
_FLAG = re.compile(r"--[a-z][a-z0-9-]*")
_LISTED = re.compile(r"^ +(?:(-\w), )?(--[a-z][a-z0-9-]*)", re.MULTILINE)
_GROUPS: Final = {"kubectl": {"auth", "coil", "create", "rollout"}, "helm": set[str]()}
_DEEPER: Final = {("create", "secret"), ("coil", "ipam")}
"""Groups of a group."""
_VALUED: Final = {"-n", "-o", "--namespace"}


@cache
def own_help(program: str) -> str:
    """What `--help` of one of our programs prints."""
    text = io.StringIO()
    with redirect_stdout(text), suppress(SystemExit):
        parse_settings(OURS[program], ["--help"], {}, program=program, about="")
    return text.getvalue()


def own_flags(program: str) -> frozenset[str]:
    """Of one of our programs."""
    return frozenset(_FLAG.findall(own_help(program)))


@cache
def plugin_flags() -> frozenset[str]:
    """Of all commands of `kubectl coil`."""
    groups = {name: each for name, each in cli.commands.items() if isinstance(each, click.Group)}
    verbs = [(name,) for name in cli.commands] + [
        (name, verb) for name, group in groups.items() for verb in group.commands
    ]
    return frozenset[str]().union(*(foreign_flags(("kubectl", "coil", *verb)) for verb in verbs))


def subcommand(words: Sequence[str]) -> tuple[str, ...]:
    """The verb of a kubectl or helm command, `("kubectl", "rollout", "status")`; options may come before it."""
    program, *rest = words
    verbs: list[str] = []
    skip = False
    for word in rest:
        if skip or word.startswith("-"):
            skip = not skip and word in _VALUED
            continue
        verbs.append(word)
        if verbs[0] not in _GROUPS[program] or len(verbs) == (3 if tuple(verbs[:2]) in _DEEPER else 2):
            break
    return (program, *verbs)


@cache
def foreign_flags(verb: tuple[str, ...]) -> frozenset[str]:
    """Long and short ones of a verb, those of all verbs included; empty for a verb that the program does not have."""
    if verb[:2] == ("kubectl", "coil"):
        done = CliRunner().invoke(cli, [*verb[2:], "--help"])
        return frozenset(flag for pair in _LISTED.findall(done.output) for flag in pair if flag)
    text = _help(*verb, "--help")
    if not re.search(rf"(?m)^ *{' '.join(verb)}( |$)", text):
        return frozenset()
    if verb[0] == "kubectl":
        text += _help("kubectl", "options")
    return frozenset(flag for pair in _LISTED.findall(text) for flag in pair if flag) | {"--help"}


@cache
def _help(program: str, *arguments: str) -> str:
    path = find_kubectl() if program == "kubectl" else str(find_helm())
    return subprocess.run([path, *arguments], capture_output=True, text=True, timeout=60, check=False).stdout
