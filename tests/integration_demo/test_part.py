import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.demo.narration import DemoError
from integration.demo.part import Part
from integration.patience import wait_until

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Makes a module that shows what the given code does; returns its name."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write_module(code: str) -> str:
        lines = [
            "import sys, time",
            "from pathlib import Path",
            "from integration.demo.narration import DemoError",
            "from integration.demo.part import play, wait_for_turn",
            f"folder = Path({str(tmp_path)!r})",
            "def show():",
            textwrap.indent(textwrap.dedent(code), "    "),
            "sys.exit(play(show))",
        ]
        (tmp_path / "shown_part.py").write_text("\n".join(lines))
        return "shown_part"

    return write_module


def test_what_a_part_says_is_held_back_until_its_turn(
    write: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    module = write(
        """
        print("prepared")
        (folder / "prepared").touch()
        wait_for_turn()
        print("shown")
        print("said as an error", file=sys.stderr)
        """
    )
    with Part("the part", module) as part:
        part.begin()
        wait_until((tmp_path / "prepared").exists, what="it is prepared")
        assert capfd.readouterr().out == ""
        part.show()
    assert capfd.readouterr().out == "prepared\nshown\nsaid as an error\n"


def test_a_part_that_was_not_begun_is_begun_at_its_turn(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    with Part("the part", write("print('shown')")) as part:
        part.show()
    assert capfd.readouterr().out == "shown\n"


def test_a_part_begins_once(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    with Part("the part", write("print('shown')")) as part:
        part.begin()
        part.begin()
        part.show()
    assert capfd.readouterr().out == "shown\n"


def test_a_part_that_fails_says_why_and_is_the_demos_failure(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    with (
        Part("the part", write("raise DemoError('the pod was seen as itself')")) as part,
        pytest.raises(DemoError, match=r"the part did not hold \(exit code 1\)"),
    ):
        part.show()
    printed = capfd.readouterr().out
    assert "the pod was seen as itself" in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    "until_then",
    ["wait_for_turn()", "time.sleep(600)", "print('x' * (1 << 20)); time.sleep(600)"],
    ids=["it waits for its turn", "it is being prepared", "it has more to say than a pipe takes"],
)
def test_a_part_that_is_not_shown_cleans_up(
    until_then: str, write: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    module = write(
        f"""
        try:
            (folder / "begun").touch()
            {until_then}
        finally:
            (folder / "cleaned up").touch()
        """
    )
    with Part("the part", module) as part:
        part.begin()
        wait_until((tmp_path / "begun").exists, what="it has begun")
        assert not (tmp_path / "cleaned up").exists()
    assert (tmp_path / "cleaned up").exists()
    assert capfd.readouterr() == ("", "")


def test_a_part_that_is_never_begun_leaves_nothing_to_close() -> None:
    with Part("the part", "no_such_module"):
        pass
