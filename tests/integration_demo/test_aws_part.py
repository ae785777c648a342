from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from integration.apiserver.runtime import CniError
from integration.demo import aws_part, staged_part
from integration.demo.aws_part import render_announcement, show_aws
from integration.demo.narration import DemoError


class MemoryStage:
    """Stands for control planes, and for the VPC on one of them."""

    @contextmanager
    def pool(self) -> Iterator["MemoryStage"]:
        yield self

    @contextmanager
    def lend(self) -> Iterator[str]:
        yield "plane"

    @contextmanager
    def up(self, plane: str) -> Iterator["MemoryStage"]:
        assert plane == "plane"
        yield self

    def logs(self) -> list[tuple[str, str]]:
        return []


def test_no_line_is_longer_than_a_terminal() -> None:
    text = render_announcement()
    assert max(map(len, text.splitlines())) <= 110
    assert "t3.small" in text


def test_a_pod_that_is_refused_is_the_demos_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MemoryStage()

    def show(world: MemoryStage) -> None:
        assert world is made
        raise CniError("ADD", {"code": 11, "msg": "node-0 kept it"})

    monkeypatch.setattr(aws_part, "PlanePool", made.pool)
    monkeypatch.setattr(aws_part, "EniWorld", made)
    monkeypatch.setattr(aws_part, "show", show)
    monkeypatch.setattr(staged_part, "wait_for_turn", lambda: None)
    with pytest.raises(DemoError, match=r"Addresses of the VPC did not hold: .*node-0 kept it"):
        show_aws()
