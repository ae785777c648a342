from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import pytest

from integration.demo import eip_part
from integration.demo.eip_part import render_announcement, show_eip
from integration.demo.narration import DemoError
from integration.egress.api import ApiError


@dataclass
class Stage:
    """Stands for the world, and for what is shown on it; `log` is what was done."""

    error: BaseException | None = None
    log: list[str] = field(default_factory=list)

    @contextmanager
    def up(self, description: str) -> Iterator["Stage"]:
        assert description == "described"
        self.log.append("up")
        try:
            yield self
        finally:
            self.log.append("down")

    def logs(self) -> list[tuple[str, str]]:
        return [("agent-n1", "its last words")]

    def show(self, world: "Stage") -> None:
        assert world is self
        self.log.append("show")
        if self.error is not None:
            raise self.error


def put_in_place(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(eip_part, "start_control_plane", lambda: nullcontext("described"))
    monkeypatch.setattr(eip_part, "World", stage)
    monkeypatch.setattr(eip_part, "show", stage.show)
    monkeypatch.setattr(eip_part, "wait_for_turn", lambda: stage.log.append("turn"))
    return stage


def test_no_line_is_longer_than_a_terminal() -> None:
    text = render_announcement()
    assert max(map(len, text.splitlines())) <= 110
    assert "n1 and n2 of them gateways" in text


def test_a_part_that_held_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stage = put_in_place(Stage(), monkeypatch)
    show_eip()
    assert stage.log == ["up", "turn", "show", "down"]
    printed = capsys.readouterr()
    assert "The EIP held" in printed.out
    assert "last words" not in printed.err


@pytest.mark.parametrize(
    "error",
    [
        DemoError("n1 kept it"),
        AssertionError("n1 kept it"),
        ApiError(500, "n1 kept it"),
        TimeoutError("n1 kept it"),
    ],
)
def test_what_does_not_hold_is_the_demos_failure(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = put_in_place(Stage(error), monkeypatch)
    with pytest.raises(DemoError, match="n1 kept it"):
        show_eip()
    assert stage.log == ["up", "turn", "show", "down"]
    printed = capsys.readouterr()
    assert "held" not in printed.out
    assert "its last words" in printed.err


def test_an_interruption_takes_the_stage_down_without_logs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = put_in_place(Stage(KeyboardInterrupt()), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        show_eip()
    assert stage.log == ["up", "turn", "show", "down"]
    assert "last words" not in capsys.readouterr().err


def test_an_error_without_words_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(Stage(TimeoutError()), monkeypatch)
    with pytest.raises(DemoError, match="TimeoutError"):
        show_eip()
