from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest

from integration.demo import staged_part
from integration.demo.narration import DemoError
from integration.demo.staged_part import show_on_stage
from integration.service import ServiceError


class OwnError(Exception):
    """Of this stage only."""


@dataclass
class MemoryStage:
    """A stage, and what is shown on it; `log` is what was done."""

    error: BaseException | None = None
    log: list[str] = field(default_factory=list)

    @contextmanager
    def up(self) -> Iterator["MemoryStage"]:
        self.log.append("up")
        try:
            yield self
        finally:
            self.log.append("down")

    def build(self, stack: ExitStack) -> "MemoryStage":
        return stack.enter_context(self.up())

    def logs(self) -> list[tuple[str, str]]:
        return [("agent-n1", "its last words")]

    def scene(self, stage: "MemoryStage") -> None:
        assert stage is self
        self.log.append("show")
        if self.error is not None:
            raise self.error


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> MemoryStage:
    made = MemoryStage()
    monkeypatch.setattr(staged_part, "wait_for_turn", lambda: made.log.append("turn"))
    return made


def show(stage: MemoryStage) -> None:
    show_on_stage("The part", build=stage.build, scene=stage.scene, failure=OwnError)


def test_a_part_that_held_says_so(stage: MemoryStage, capsys: pytest.CaptureFixture[str]) -> None:
    show(stage)
    assert stage.log == ["up", "turn", "show", "down"]
    printed = capsys.readouterr()
    assert "The part held" in printed.out
    assert "last words" not in printed.err


@pytest.mark.parametrize("kind", [DemoError, AssertionError, ServiceError, TimeoutError, OwnError])
def test_what_does_not_hold_is_the_demos_failure(
    kind: type[Exception], stage: MemoryStage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.error = kind("n1 kept it")
    with pytest.raises(DemoError, match="n1 kept it"):
        show(stage)
    assert stage.log == ["up", "turn", "show", "down"]
    printed = capsys.readouterr()
    assert "held" not in printed.out
    assert "its last words" in printed.err


def test_an_error_of_another_kind_stays_what_it_is(stage: MemoryStage) -> None:
    stage.error = LookupError("n1")
    with pytest.raises(LookupError):
        show(stage)
    assert stage.log == ["up", "turn", "show", "down"]


def test_an_interruption_takes_the_stage_down_without_logs(
    stage: MemoryStage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        show(stage)
    assert stage.log == ["up", "turn", "show", "down"]
    assert "last words" not in capsys.readouterr().err


def test_an_error_without_words_is_named(stage: MemoryStage) -> None:
    stage.error = TimeoutError()
    with pytest.raises(DemoError, match="The part did not hold: TimeoutError"):
        show(stage)
