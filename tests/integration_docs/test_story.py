"""The story against the pages: every block that can be executed is in it, and nothing else."""

import re

import pytest

from integration.docs.command import parse_commands
from integration.docs.page import Place, Run, read_pages, runnable_blocks
from integration.docs.story import BESIDE, CHAPTERS, VARIABLES, Step
from tests.docs.program_help import subcommand

BLOCKS = runnable_blocks(read_pages())
STEPS = [step for chapter in (*CHAPTERS, *BESIDE) for step in chapter]
OF_THE_STAGE = {"VALUES", "BLOCK", "FILE", "FOLDER", "VERSION"}


def test_every_block_is_executed() -> None:
    assert {step.block for step in STEPS} == set(BLOCKS)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.block)
def test_a_step_shows_something_that_can_be_looked_for(step: Step) -> None:
    assert step.shows
    assert all(re.compile(pattern, re.MULTILINE) for pattern in step.shows)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.block)
def test_what_is_to_be_set_first_is_set(step: Step) -> None:
    block = BLOCKS[step.block]
    named = set(re.findall(r"\$(\w+)", block.text))  # those with a default are in braces
    assert named <= {*VARIABLES, *step.variables, *OF_THE_STAGE}


@pytest.mark.parametrize("step", [step for step in STEPS if step.waits], ids=lambda step: step.block)
def test_what_is_repeated_changes_nothing(step: Step) -> None:
    block = BLOCKS[step.block]
    assert isinstance(block.mark, Run)
    if block.mark.place is Place.ADMIN:
        verbs = {subcommand(command.words)[1] for command in parse_commands(block.text)}
        assert verbs <= {"get", "describe", "logs"}


def test_what_is_missing_is_told() -> None:
    step = Step("a", ["^b", "c d$"])
    assert step.missing("b\nec d\n") == []
    assert step.missing("ab\nc d e\n") == ["^b", "c d$"]
