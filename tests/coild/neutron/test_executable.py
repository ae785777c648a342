"""Executables that plug in ports: what they are called with, which may be run at all, and how long."""

import asyncio
import os
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coil.ipam.occupancy import ContainerId
from coild.model.port_error import BindError, BindTimeoutError, PortTypeUnknownError
from coild.neutron.executable import OUTPUT_BYTES, ExecutableBinding, check_executable
from integration.patience import wait_until
from tests.coild.neutron.binding_contract import SECONDS, BindingContract, BindingStage, binding
from tests.coild.neutron.port_node import MemoryBinding, Network

RECORDING = """#!/bin/sh
# Keeps a file for each port that is plugged in: as somebody would who is not coild.
set -eu
folder=$(dirname "$0")/..
echo "$@" >>"$folder/calls"
case $1 in
bind)
    echo "$3 $4" >"$folder/port-$2"
    [ ! -e "$folder/obstructed" ] || { echo "no such" >&2; echo "bridge" >&2; exit 3; }
    [ ! -e "$folder/slow" ] || { : >"$folder/hanging"; exec sleep 100000; }
    ;;
unbind)
    rm -f "$folder/port-$2"
    ;;
esac
"""


def install(folder: Path, script: str, name: str = "memory") -> ExecutableBinding:
    path = folder / "bin" / name
    path.parent.mkdir(mode=0o755, exist_ok=True)
    path.parent.chmod(0o755)
    path.write_text(script)
    path.chmod(0o755)
    return ExecutableBinding(path.parent, name, owner=os.geteuid())


class Scripts:
    """A `BindingStage`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def new(self) -> ExecutableBinding:
        return install(self.folder, RECORDING)

    def plugged(self) -> Collection[tuple[str, str, str]]:
        files = self.folder.glob("port-*")
        return [(file.name.removeprefix("port-"), *file.read_text().split()) for file in files]  # type: ignore[misc]

    def obstruct(self) -> None:
        (self.folder / "obstructed").touch()

    async def delay(self) -> Callable[[], Coroutine[Any, Any, None]]:
        (self.folder / "slow").touch()

        async def hangs() -> None:
            while not (self.folder / "hanging").exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.01)

        return hangs

    @property
    def calls(self) -> list[list[str]]:
        return [line.split(" ") for line in (self.folder / "calls").read_text().splitlines()]


class InMemory:
    """A `BindingStage`."""

    def __init__(self) -> None:
        self.network = Network()
        self.step: Callable[[str], Coroutine[Any, Any, None]] | None = None

    def new(self) -> MemoryBinding:
        made = MemoryBinding(self.network)
        if self.step is not None:
            made.gate = self.step
        return made

    def plugged(self) -> Collection[tuple[str, str, str]]:
        return [(port, ifname, endpoint) for port, (ifname, endpoint) in self.network.plugged.items()]

    def obstruct(self) -> None:
        async def gate(step: str) -> None:
            if step == "bound":
                raise BindError("no such bridge")

        self.step = gate

    async def delay(self) -> Callable[[], Coroutine[Any, Any, None]]:
        hanging = asyncio.Event()

        async def gate(step: str) -> None:
            if step == "bound":
                hanging.set()
                await asyncio.Event().wait()

        async def hangs() -> None:
            await hanging.wait()

        self.step = gate
        return hangs


class TestMemory(BindingContract):
    @pytest.fixture
    def stage(self) -> BindingStage:
        return InMemory()


class TestExecutable(BindingContract):
    @pytest.fixture
    def stage(self, tmp_path: Path) -> BindingStage:
        return Scripts(tmp_path)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_what_it_is_called_with(tmp_path: Path) -> None:
    scripts, one = Scripts(tmp_path), binding(1)
    made = scripts.new()
    run(made.bind(one, timeout=SECONDS))
    run(made.unbind(one, timeout=SECONDS))
    common = [one.port.port, one.ifname, one.endpoint, one.port.mac]
    assert scripts.calls == [["bind", *common, one.port.network, one.port.project], ["unbind", *common]]


def test_what_nobody_knows_of_a_port_is_an_empty_argument(tmp_path: Path) -> None:
    scripts = Scripts(tmp_path)
    run(scripts.new().bind(binding(1, network="", project=""), timeout=SECONDS))
    assert scripts.calls[0][-2:] == ["", ""]


def test_its_words_are_in_the_error(tmp_path: Path) -> None:
    scripts = Scripts(tmp_path)
    scripts.obstruct()
    with pytest.raises(BindError, match=r"bin/memory bind ended with status 3: no such bridge$"):
        run(scripts.new().bind(binding(), timeout=SECONDS))


def test_of_many_words_only_the_first_are(tmp_path: Path) -> None:
    made = install(tmp_path, '#!/bin/sh\n[ "$1" = unbind ] || { seq 1 200000; exit 1; }\n')
    with pytest.raises(BindError) as caught:
        run(made.bind(binding(), timeout=SECONDS))
    assert OUTPUT_BYTES / 2 < len(str(caught.value)) < 2 * OUTPUT_BYTES


def test_what_it_leaves_in_the_background_is_not_waited_for(tmp_path: Path) -> None:
    made = install(tmp_path, f'#!/bin/sh\nsleep 100000 & echo $! >>"{tmp_path}/pids"\n')
    run(made.bind(binding(), timeout=SECONDS))
    for pid in (tmp_path / "pids").read_text().split():
        os.kill(int(pid), 9)


def test_one_that_takes_too_long_is_killed_with_its_children_and_undone(tmp_path: Path) -> None:
    script = f"""#!/bin/sh
echo "$1" >>"{tmp_path}/calls"
[ "$1" = bind ] || exit 0
sleep 100000 &
echo $$ $! >"{tmp_path}/pids"
echo waiting
wait
"""
    made = install(tmp_path, script)
    with pytest.raises(BindTimeoutError, match="has not ended within 1 s and was killed") as caught:
        run(made.bind(binding(), timeout=1.0))
    assert caught.value.undone
    assert (tmp_path / "calls").read_text().split()[-1] == "unbind"
    # On a slow machine it has not come so far.
    pids = (tmp_path / "pids").read_text().split() if (tmp_path / "pids").exists() else []
    wait_until(lambda: not any(map(is_running, map(int, pids))), what="end of all that it has begun")


def test_one_that_cannot_be_undone_says_so(tmp_path: Path) -> None:
    made = install(tmp_path, '#!/bin/sh\necho "no $1"; exit 1\n')
    with pytest.raises(BindError, match=r"no bind; nor could it be undone.*no unbind") as caught:
        run(made.bind(binding(), timeout=SECONDS))
    assert not caught.value.undone


def test_nothing_of_coilds_environment_and_no_descriptor_is_its_business(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "token")
    made = install(tmp_path, f'#!/bin/sh\npwd >"{tmp_path}/env"; cd "{tmp_path}"\nenv >>env; ls /proc/self/fd >fd\n')
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    run(made.bind(binding(), timeout=SECONDS))
    os.close(reading)
    os.close(writing)
    folder, *environment = (tmp_path / "env").read_text().splitlines()
    assert folder == "/"
    assert not [line for line in environment if line.startswith(("SECRET", "COIL", "HOME"))]
    # The last one is the folder that ls looks into.
    assert {*(tmp_path / "fd").read_text().split()} <= {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    "change",
    [{"project": "--help"}, {"project": "a b"}, {"project": "$(id)"}, {"port": "-rf"}, {"network": "x" * 200}],
)
def test_no_text_from_outside_is_an_option_or_anything_but_a_word(tmp_path: Path, change: dict[str, str]) -> None:
    scripts = Scripts(tmp_path)
    made = scripts.new()
    with pytest.raises(BindError, match="is no argument"):
        run(made.bind(binding(1, **change), timeout=SECONDS))
    assert not scripts.plugged()


class TestWhichMayBeRun:
    def test_none(self, tmp_path: Path) -> None:
        with pytest.raises(PortTypeUnknownError, match="there is no"):
            run(ExecutableBinding(tmp_path / "bin", "memory").bind(binding(), timeout=SECONDS))
        install(tmp_path, RECORDING)
        with pytest.raises(PortTypeUnknownError, match="bin/other"):
            run(ExecutableBinding(tmp_path / "bin", "other", owner=os.geteuid()).unbind(binding(), timeout=SECONDS))

    @pytest.mark.parametrize("type_", ["../memory", "/bin/sh", "Memory", "", ".", "a/b"])
    def test_no_path(self, tmp_path: Path, type_: str) -> None:
        with pytest.raises(ValueError, match="is none"):
            ExecutableBinding(tmp_path, type_)

    @pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
    @pytest.mark.parametrize("place", ["bin", "bin/memory"])
    def test_none_that_others_may_write_to(self, tmp_path: Path, place: str, mode: int) -> None:
        install(tmp_path, RECORDING)
        (tmp_path / place).chmod(mode)
        with pytest.raises(BindError, match=rf"others may write to it: chmod go-w .*{place}$"):
            check_executable(tmp_path / "bin" / "memory", owner=os.geteuid())

    def test_none_of_anybody_else(self, tmp_path: Path) -> None:
        install(tmp_path, RECORDING)
        with pytest.raises(BindError, match=f"belongs to user {os.geteuid()}"):
            check_executable(tmp_path / "bin" / "memory", owner=os.geteuid() + 1)

    def test_none_that_is_not_executable(self, tmp_path: Path) -> None:
        install(tmp_path, RECORDING)
        (tmp_path / "bin" / "memory").chmod(0o644)
        with pytest.raises(BindError, match=r"chmod u\+x"):
            check_executable(tmp_path / "bin" / "memory", owner=os.geteuid())

    def test_no_link(self, tmp_path: Path) -> None:
        install(tmp_path, RECORDING)
        (tmp_path / "bin" / "other").symlink_to("memory")
        with pytest.raises(BindError, match="links are not followed"):
            check_executable(tmp_path / "bin" / "other", owner=os.geteuid())
        (tmp_path / "link").symlink_to("bin")
        with pytest.raises(BindError, match="links are not followed"):
            check_executable(tmp_path / "link" / "memory", owner=os.geteuid())

    def test_nothing_that_the_kernel_does_not_run(self, tmp_path: Path) -> None:
        made = install(tmp_path, "#!/nowhere/interpreter\n")
        with pytest.raises(BindError, match="cannot be run"):
            run(made.bind(binding(), timeout=SECONDS))


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


def test_a_binding_of_another_port_is_untouched(tmp_path: Path) -> None:
    scripts = Scripts(tmp_path)
    made = scripts.new()
    run(made.bind(binding(1), timeout=SECONDS))
    run(made.unbind(replace(binding(2), endpoint=ContainerId("x")), timeout=SECONDS))
    assert len(scripts.plugged()) == 1
