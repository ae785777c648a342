"""`--help` of the programs: every flag is under a heading, and its value is called by a common word."""

import re

import pytest

from coil.runtime.flag import Group
from tests.docs.program_help import OURS, own_help

WORDS = {"ADDR", "CIDR", "DURATION", "HOST", "HOST:PORT", "N", "NAME", "NAMESPACE", "NODE"} | {
    "PATH",
    "PERCENT",
    "PERIOD",
    "PREFIX",
    "REGEX",
    "TEXT",
    "URL",
}


@pytest.mark.parametrize("program", OURS)
def test_every_flag_has_a_heading(program: str) -> None:
    headings = re.findall(r"(?m)^(\S.*):$", own_help(program))
    assert set(headings) - {"options", "environment"} <= {group.value for group in Group} - {Group.OTHER.value}
    assert len(headings) > 1


@pytest.mark.parametrize("program", OURS)
def test_every_value_has_a_common_name(program: str) -> None:
    names = re.findall(r"(?m)^  --[a-z0-9-]+ \[?([^\s\[\]]+)", own_help(program))
    words = {word for name in names for word in re.split(r"[|/,]", name) if not word.islower() and word != "node-ip"}
    assert words
    assert words <= WORDS
