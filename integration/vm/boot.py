"""The guest's first program, as text: it makes a root out of the layer and the machine's files, runs the command there,
and reports its exit code.

Pure. The three ports are lines to `machine`: the command's output, its errors, and the report. The kernel's own
console is another one, so nothing of the boot is ever mixed with the output.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

OUTPUT_PORT = "coil.output"
ERROR_PORT = "coil.error"
REPORT_PORT = "coil.report"

MACHINE_TAG = "machine"
KERNEL_TAG = "kernel"
RESULTS_TAG = "results"

_BUSYBOX = "/bin/busybox"
_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ADDRESS = "10.0.2.15/24"
_GATEWAY = "10.0.2.2"
"""QEMU's user network: what goes to the gateway, the machine's own sockets send on (QEMU manual, "user mode")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """A command and the place that it runs in."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    results: Path | None
    """The machine's folder that is writable inside, at its own path."""
    needed: Sequence[Path]
    """Folders of the machine that the command must see even below a folder that is the guest's own, such as /tmp."""
    boot_modules: Sequence[str]
    """Files below /boot-modules of the initial file system, in their order."""
    modules: Sequence[str]
    """Loaded by name before the command runs; those that do not exist are passed over."""


def render_boot(errand: Errand) -> str:
    """/init of the initial file system, which has busybox in /bin and the layer in /layer."""
    return "\n".join(
        [
            f"#!{_BUSYBOX} sh",
            f"{_BUSYBOX} mkdir -p /proc /sys /dev /machine /kernel /scratch /root",
            f"{_BUSYBOX} --install -s /bin",
            "export PATH=/bin",
            "mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev",
            *(f"insmod /boot-modules/{name}" for name in errand.boot_modules),
            "port() {",
            "  for name in /sys/class/virtio-ports/*/name; do",
            '    [ "$(cat "$name")" = "$1" ] && echo "/dev/$(basename "$(dirname "$name")")"',
            "  done",
            "}",
            f'output="$(port {OUTPUT_PORT})" error="$(port {ERROR_PORT})" report="$(port {REPORT_PORT})"',
            'exec 3>"$report"',
            'fail() { echo "the guest cannot $1" >&3; sync; reboot -f; }',
            "echo alive >&3",
            *_network_lines(),
            *_root_lines(errand),
            # As switch_root does, but the layer stays. The first process itself must change its root: the kernel's
            # threads share it with it, and look for modprobe there.
            "mount --move . /",
            f"export PATH={_SEARCH_PATH} output error",
            "exec chroot . busybox sh /run/errand",
            "",
        ]
    )


def render_errand(errand: Errand) -> str:
    """What the first process goes on with inside the guest's root: it runs the command, reports, and ends the guest."""
    environment = [f"{name}={value}" for name, value in errand.environment.items()]
    return "\n".join(
        [
            f"modprobe -qa {shlex.join(errand.modules)}",
            f"cd {shlex.quote(str(errand.folder))}",
            f'env -i {shlex.join([*environment, *errand.argv])} </dev/null >"$output" 2>"$error" 3>&-',
            'echo "ended $?" >&3',
            "busybox reboot -f",
            "",
        ]
    )


def _root_lines(errand: Errand) -> list[str]:
    options = "trans=virtio,version=9p2000.L,msize=512000"
    lines = [
        # Nobody changes the machine's files under the guest that the guest would have to know of.
        f"mount -t 9p -o ro,cache=loose,{options} {MACHINE_TAG} /machine || fail 'see the machine'",
        f"mount -t 9p -o ro,cache=loose,{options} {KERNEL_TAG} /kernel || fail 'see its modules'",
        "mount -t tmpfs tmpfs /scratch; mkdir /scratch/upper /scratch/work",
        "mount -t overlay -o lowerdir=/layer:/kernel:/machine,upperdir=/scratch/upper,workdir=/scratch/work root /root "
        "|| fail 'lay its root over the machine'",
        "cd /root",
        "mount -t proc -o nosuid,nodev,noexec proc proc",
        "mount -t sysfs -o nosuid,nodev,noexec sys sys",
        "mount -t cgroup2 cgroup2 sys/fs/cgroup",
        "mount -t bpf bpf sys/fs/bpf",
        "mount -t devtmpfs dev dev; mkdir -p dev/pts dev/shm",
        "mount -t devpts -o ptmxmode=666,mode=620 devpts dev/pts",
        "ln -sf /proc/self/fd dev/fd; ln -sf fd/0 dev/stdin; ln -sf fd/1 dev/stdout; ln -sf fd/2 dev/stderr",
        *_private_lines(errand.needed),
        "mkdir -p run/lock; cp /errand run/errand",
    ]
    if errand.results is not None:
        place = shlex.quote(f".{errand.results}")
        lines += [
            f"mkdir -p {place}",
            f"mount -t 9p -o {options} {RESULTS_TAG} {place} || fail 'see the folder of results'",
        ]
    return lines


_PRIVATE = {"run": "755", "tmp": "1777", "dev/shm": "1777", "var/tmp": "1777"}
_KERNEL_FOLDERS = (Path("/proc"), Path("/sys"), Path("/dev"))


def check_folder(folder: Path) -> str:
    """Why the guest cannot see the folder at its own path, as one sentence; "" when it can."""
    for kernel in _KERNEL_FOLDERS:
        if folder.is_relative_to(kernel):
            return f"{folder} is below {kernel}, which the virtual machine's kernel has of its own: move it elsewhere"
    return ""


def _private_lines(needed: Sequence[Path]) -> list[str]:
    """File systems of the guest's own, with those of the machine's folders put back that they would hide."""
    hidden = [path for path in needed if any(path.is_relative_to(f"/{private}") for private in _PRIVATE)]
    places = {path: shlex.quote(f".{path}") for path in hidden}
    return [
        *(f"mkdir -p /needed/{number}" for number in range(len(places))),
        *(f"mount --bind {place} /needed/{number}" for number, place in enumerate(places.values())),
        *(f"mount -t tmpfs -o mode={mode} tmpfs {path}" for path, mode in _PRIVATE.items()),
        *(
            f"mkdir -p {place} && mount --move /needed/{number} {place} || fail {shlex.quote(f'see {path}')}"
            for number, (path, place) in enumerate(places.items())
        ),
    ]


def _network_lines() -> list[str]:
    return [
        "hostname coil-vm",
        "ip link set lo up",
        "if [ -e /sys/class/net/eth0 ]; then",
        f"  ip link set eth0 up; ip address add {_ADDRESS} dev eth0; ip route add default via {_GATEWAY}",
        "fi",
    ]
