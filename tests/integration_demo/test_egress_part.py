from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from integration.demo import egress_part
from integration.demo.egress_part import render_announcement, render_end
from integration.demo.narration import DemoError
from integration.egress.description import VARIABLE
from integration.vm.machine import Accelerator
from integration.vm.run import Place, Terms

MISSING = ["Foo-over-UDP for IPv4 (Operation not supported)"]


def flat(missing: list[str], *, accelerator: Accelerator, kernel: str = "6.1.0-9-amd64") -> str:
    return " ".join(render_announcement(missing, accelerator=accelerator, kernel=kernel).split())


def test_a_kernel_with_everything_needs_no_virtual_machine() -> None:
    text = flat([], accelerator=Accelerator.EMULATION)
    assert "kernel has Foo-over-UDP" in text
    assert "nothing is emulated" in text
    assert "virtual machine" not in text
    assert "minutes" not in text


def test_emulation_is_said_with_its_reason_and_the_time_that_it_takes() -> None:
    text = flat(MISSING, accelerator=Accelerator.EMULATION)
    assert "kernel has no Foo-over-UDP" in text
    assert "virtual machine with Debian's kernel 6.1.0-9-amd64." in text
    assert "emulated" in text
    assert "minutes" in text


def test_a_virtual_machine_with_the_processors_help_is_not_called_slow() -> None:
    text = flat(MISSING, accelerator=Accelerator.KVM)
    assert "virtual machine" in text
    assert "(KVM), and nothing is emulated" in text
    assert "minutes" not in text


@pytest.mark.parametrize(
    ("missing", "accelerator", "where"),
    [
        ([], Accelerator.EMULATION, "on this machine's kernel"),
        (MISSING, Accelerator.KVM, "in a virtual machine with KVM, from its boot to its end"),
        (MISSING, Accelerator.EMULATION, "in a virtual machine with emulated processors, from its boot to its end"),
    ],
)
def test_the_end_says_which_way_it_was_and_what_it_took(
    missing: list[str], accelerator: Accelerator, where: str
) -> None:
    said = render_end(missing, accelerator=accelerator, seconds=249.4, scene_seconds=231.2)
    assert said == f"Egress NAT held, in 249 s: 231 s of it {where}."


def test_a_kernel_that_is_not_known_leaves_no_gap() -> None:
    assert "Debian's kernel. Its" in flat(MISSING, accelerator=Accelerator.KVM, kernel="")


def test_no_line_is_longer_than_a_terminal() -> None:
    text = render_announcement(MISSING, accelerator=Accelerator.EMULATION, kernel="6.1.0-56-amd64")
    assert max(map(len, text.splitlines())) <= 110


@dataclass
class Kernel:
    """Stands for this machine and its virtual machine: what it lacks, and how the scene ends there."""

    missing: list[str]
    code: int
    places: list[Place] = field(default_factory=list)

    def run(self, argv: Sequence[str], *, terms: Terms, environment: Mapping[str, str]) -> int:
        assert "integration.demo.egress_scene" in argv
        assert Path(environment[VARIABLE]) == STAGE
        self.places.append(terms.place)
        return self.code


STAGE = Path("/nowhere/stage.json")


def put_in_place(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_part, "missing_features", lambda: kernel.missing)
    monkeypatch.setattr(egress_part, "run_with_fou", kernel.run)
    description = SimpleNamespace(proxy=Path("/nowhere/kube-proxy"))
    monkeypatch.setattr(egress_part, "start_outside", lambda: nullcontext((description, STAGE)))


@pytest.mark.parametrize(("missing", "place"), [(MISSING, Place.GUEST), ([], Place.MACHINE)])
def test_the_scene_plays_where_the_text_says(
    missing: list[str], place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = Kernel(missing, code=0)
    put_in_place(kernel, monkeypatch)
    egress_part.show_egress()
    assert kernel.places == [place]
    printed = capsys.readouterr().out
    assert ("virtual machine" in printed) is (place is Place.GUEST)
    assert "Egress NAT held" in printed


def test_a_scene_that_fails_is_the_demos_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_in_place(Kernel([], code=1), monkeypatch)
    with pytest.raises(DemoError, match="exit code 1"):
        egress_part.show_egress()
    assert "held" not in capsys.readouterr().out
