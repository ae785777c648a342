"""Who executes programs of another architecture: which handler of binfmt_misc takes which files."""

import subprocess
from pathlib import Path

import pytest

from integration.image import emulation as emulation_module
from integration.image.emulation import ARCHITECTURES, EmulationError, emulation, header, parse_handlers

MAGIC = "7f454c460201010000000000000000000200b700"
MASK = "ffffffffffffff00fffffffffffffffffeffffff"
DEBIANS = f"""\
python3.11:enabled
python3.11:interpreter /usr/bin/python3.11
python3.11:flags: 
python3.11:offset 0
python3.11:magic a70d0d0a
qemu-aarch64:enabled
qemu-aarch64:interpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P
qemu-aarch64:flags: POF
qemu-aarch64:offset 0
qemu-aarch64:magic {MAGIC}
qemu-aarch64:mask {MASK}
by-name:enabled
by-name:interpreter /usr/bin/jexec
by-name:flags: 
by-name:extension .jar
status:enabled
"""  # noqa: W291 - as the kernel writes them
OWN, FOREIGN = "amd64", "arm64"


@pytest.fixture(autouse=True)
def amd64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever machine this is."""
    monkeypatch.setattr(emulation_module, "machine_architecture", lambda: OWN)


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file that stands for what the kernel lists."""
    path = tmp_path / "listing"
    path.write_text(DEBIANS)

    def start(script: str, *_: str) -> subprocess.Popen[str]:
        assert script == emulation_module._LIST, "nothing may be registered"
        return subprocess.Popen(["cat", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    monkeypatch.setattr(emulation_module, "_start", start)
    return path


def taken(text: str, beginning: bytes) -> list[str]:
    return [handler.name for handler in parse_handlers(text) if handler.takes(beginning)]


def test_debians_handler_takes_what_is_for_arm64() -> None:
    assert [handler.name for handler in parse_handlers(DEBIANS)] == ["python3.11", "qemu-aarch64", "by-name"]
    assert taken(DEBIANS, header("arm64")) == ["qemu-aarch64"]
    assert taken(DEBIANS, header("amd64")) == []


def test_it_takes_shared_ones_and_those_of_any_system() -> None:
    beginning = bytearray(header("arm64"))
    beginning[7], beginning[16] = 3, 3  # ELFOSABI_GNU, ET_DYN
    assert taken(DEBIANS, bytes(beginning)) == ["qemu-aarch64"]
    beginning[4] = 1  # 32 bits
    assert taken(DEBIANS, bytes(beginning)) == []


def test_without_a_mask_all_bits_count() -> None:
    text = DEBIANS.replace(f"qemu-aarch64:mask {MASK}\n", "")
    assert taken(text, header("arm64")) == ["qemu-aarch64"]
    assert taken(text, header("arm64")[:16] + b"\3" + header("arm64")[17:]) == []


@pytest.mark.parametrize(("name", "known"), ARCHITECTURES.items(), ids=str)
def test_ours_is_as_debians(name: str, known: emulation_module.Architecture) -> None:
    magic, mask = header(name), emulation_module._MASK
    assert len(magic) == len(mask)
    if name == "arm64":
        assert (known.machine, magic.hex(), mask.hex()) == ("aarch64", MAGIC, MASK)
    assert emulation_module._escaped(magic).startswith(r"\x7f\x45\x4c\x46")


def test_a_handler_that_the_machine_has_is_used(listing: Path) -> None:
    entered = []
    with emulation(FOREIGN):
        entered.append(FOREIGN)
    assert entered == [FOREIGN]


def test_the_machines_own_programs_need_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(emulation_module, "_start")
    with emulation(OWN):
        pass


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ("flags: POF", "flags: PO"),  # it would not be found in another root
        ("qemu-aarch64:enabled", "qemu-aarch64:disabled"),
        ("qemu-aarch64:", "coil-arm64-0123abcd:"),  # it goes with whoever registered it
        (MAGIC, MAGIC.replace("b7", "3e")),
    ],
)
def test_another_handler_is_none(listing: Path, monkeypatch: pytest.MonkeyPatch, said: str, instead: str) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    listing.write_text(DEBIANS.replace(said, instead))
    with pytest.raises(EmulationError, match="apt-get install qemu-user-static"), emulation(FOREIGN):
        pytest.fail("nobody executes them")


def test_a_dynamic_qemu_is_of_no_use(listing: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As Debian 12 has it beside the static one: its libraries would be looked for in the other root."""
    listing.write_text("status:enabled\n")
    (tmp_path / "qemu-aarch64").write_bytes(b"\x7fELF" + bytes(600) + b"/lib64/ld-linux-x86-64.so.2\0")
    (tmp_path / "qemu-aarch64").chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: next(map(str, tmp_path.glob(name)), None))
    with pytest.raises(EmulationError, match="apt-get install qemu-user-static"), emulation(FOREIGN):
        pytest.fail("nobody executes them")


def test_switched_off_is_told(listing: Path) -> None:
    listing.write_text(DEBIANS.replace("status:enabled", "status:disabled"))
    with pytest.raises(EmulationError, match="switched off"), emulation(FOREIGN):
        pytest.fail("nobody executes them")


def test_that_it_cannot_be_mounted_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = ["sh", "-c", "echo mount: binfmt_misc: >&2; echo permission denied. >&2; exit 32"]

    def start(*_: str) -> subprocess.Popen[str]:
        return subprocess.Popen(failing, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    monkeypatch.setattr(emulation_module, "_start", start)
    with pytest.raises(EmulationError) as raised, emulation(FOREIGN):
        pytest.fail("nobody executes them")
    assert "(mount: binfmt_misc: permission denied.)" in str(raised.value)
    assert "\n" not in str(raised.value)
