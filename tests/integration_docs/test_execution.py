"""Blocks executed as they stand, with stand-ins for kubectl and for a node."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from integration.docs.execution import BlockError, Execution
from integration.docs.page import Block, ByHand, Place, Run

KUBECTL = """#!/bin/sh
echo "$KUBECONFIG" "$@"
cat
"""


def block(text: str, *, language: str = "sh", place: Place = Place.ADMIN) -> Block:
    return Block("a.md", 3, language, text, Run("a", place))


@pytest.fixture
def execution(tmp_path: Path) -> Execution:
    """With a kubectl that repeats what it was told."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    return Execution(kubeconfig=Path("/of/cluster"), home=tmp_path, programs=[tmp_path], variables={"NODE": "worker 1"})


def test_commands_see_variables_and_the_cluster(execution: Execution) -> None:
    assert execution.run(block('kubectl get node "$NODE" </dev/null\n')) == "/of/cluster get node worker 1\n"


def test_commands_begin_at_the_top_of_the_checkout(execution: Execution) -> None:
    assert execution.run(block("ls charts/coil/Chart.yaml")) == "charts/coil/Chart.yaml\n"


def test_commands_do_not_see_the_checkouts_programs(execution: Execution, monkeypatch: pytest.MonkeyPatch) -> None:
    """An activated environment has coil-migrator; a test that found it there would fail without."""
    ours = Path(sys.executable).parent
    assert (ours / "coil-migrator").exists()
    monkeypatch.setenv("PATH", os.pathsep.join([str(ours), os.environ["PATH"]]))
    assert execution.run(block("command -v coil-migrator || echo none")) == "none\n"


def test_a_variable_of_one_run_wins(execution: Execution) -> None:
    assert execution.run(block('echo "$NODE" "$POOL"'), variables={"NODE": "2", "POOL": "a"}) == "2 a\n"


def test_what_programs_remember_is_kept_apart(execution: Execution) -> None:
    assert execution.run(block('echo "$HOME"')) == f"{execution.home}\n"


def test_both_outputs_are_seen_in_their_order(execution: Execution) -> None:
    assert execution.run(block("echo a; echo b >&2; echo c")) == "a\nb\nc\n"


def test_manifests_are_applied(execution: Execution) -> None:
    printed = execution.run(block("kind: A\n", language="yaml"))
    assert printed == "/of/cluster apply --filename=-\nkind: A\n"


@pytest.mark.parametrize("text", ["echo well; false", "false; echo well", 'echo "$MISSING"'])
def test_the_first_command_that_fails_ends_it(execution: Execution, text: str) -> None:
    with pytest.raises(BlockError, match=r"a\.md:3 ended with code"):
        execution.run(block(text))


def test_a_code_that_is_the_answer_is_expected(execution: Execution) -> None:
    assert execution.run(block("echo found; exit 3"), code=3) == "found\n"
    with pytest.raises(BlockError, match=r"a\.md:3 ended with code 0"):
        execution.run(block("echo nothing"), code=3)


def test_a_block_that_takes_too_long_is_ended(execution: Execution) -> None:
    impatient = Execution(kubeconfig=execution.kubeconfig, home=execution.home, seconds=0.2)
    with pytest.raises(BlockError, match="was not done within 0 s"):
        impatient.run(block("tail -f /dev/null; echo done"))  # it holds the output open, so this waits for its end


def test_a_node_gets_the_text_and_the_variables(execution: Execution) -> None:
    seen: list[Sequence[str]] = []

    def node(command: Sequence[str]) -> str:
        seen.append(command)
        return "said"

    assert execution.run(block("ip rule\n", place=Place.NODE), node=node) == "said"
    assert seen == [["env", "NODE=worker 1", "sh", "-euc", "ip rule\n"]]


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (Block("a.md", 3, "sh", "ls"), "not marked"),
        (Block("a.md", 3, "sh", "ls", ByHand("so")), "not marked"),
        (block("ls", language="text"), "a block of text cannot be executed"),
        (block("ls", place=Place.NODE), "for a node"),
    ],
)
def test_what_is_not_to_be_executed_is_not(execution: Execution, refused: Block, said: str) -> None:
    with pytest.raises(BlockError, match=said):
        execution.run(refused)
