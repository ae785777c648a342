"""The modules of a kernel that the guest shall have at hand: names and what they depend on. No input, no output."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

BOOT = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "virtio_net")
"""What the guest needs before it sees any file of the machine, and its network."""

FOLDERS = (
    "kernel/net/bridge",
    "kernel/net/core",
    "kernel/net/ipv4",
    "kernel/net/ipv6",
    "kernel/net/netfilter",
    "kernel/net/sched",
)
"""Folders whose modules are all taken: nobody can list what kube-proxy's rules will ask for."""

OTHERS = ("veth", "dummy", "af_packet", "tun", "vxlan", "wireguard", "bridge", "br_netfilter", "sctp", "openvswitch")


@dataclass(frozen=True, slots=True)
class ModuleTree:
    """modules.dep(5): each module's path below the modules' folder, and the paths that it depends on."""

    dependencies: Mapping[str, Sequence[str]]

    def paths(self, names: Iterable[str]) -> list[str]:
        """The modules of these names and all that they depend on, each after what it needs; unknown names are
        built into the kernel and left out."""
        by_name = {module_name(path): path for path in self.dependencies}
        ordered: dict[str, None] = {}
        for name in names:
            if (path := by_name.get(name.replace("-", "_"))) is not None:
                # Listed with the one that must be loaded first at the end.
                ordered |= dict.fromkeys([*reversed(self.dependencies[path]), path])
        return list(ordered)

    def below(self, folders: Sequence[str]) -> list[str]:
        """The names of all modules in these folders and below."""
        return [module_name(path) for path in self.dependencies if path.startswith(tuple(f"{f}/" for f in folders))]


def parse_dependencies(text: str) -> ModuleTree:
    """The content of modules.dep."""
    lines = (line.partition(":") for line in text.splitlines())
    return ModuleTree({path: rest.split() for path, _, rest in lines})


def module_name(path: str) -> str:
    """The name that modprobe has for the module in a file."""
    return PurePosixPath(path).name.partition(".")[0].replace("-", "_")
