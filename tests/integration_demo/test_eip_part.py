from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from integration.demo import eip_part, staged_part
from integration.demo.eip_part import render_announcement, show_eip
from integration.demo.narration import DemoError
from integration.egress.api import ApiError


class MemoryStage:
    """Stands for the world on a control plane."""

    @contextmanager
    def up(self, description: str) -> Iterator["MemoryStage"]:
        assert description == "described"
        yield self

    def logs(self) -> list[tuple[str, str]]:
        return []


def test_no_line_is_longer_than_a_terminal() -> None:
    text = render_announcement()
    assert max(map(len, text.splitlines())) <= 110
    assert "n1 and n2 of them gateways" in text


def test_what_the_api_server_refuses_is_the_demos_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MemoryStage()

    def show(world: MemoryStage) -> None:
        assert world is made
        raise ApiError(500, "n1 kept it")

    monkeypatch.setattr(eip_part, "start_control_plane", lambda: nullcontext("described"))
    monkeypatch.setattr(eip_part, "World", made)
    monkeypatch.setattr(eip_part, "show", show)
    monkeypatch.setattr(staged_part, "wait_for_turn", lambda: None)
    with pytest.raises(DemoError, match=r"The EIP gateway did not hold: .*n1 kept it"):
        show_eip()
