"""What egress NAT wants of a kernel, and which of it the running one lacks: asked by doing it in a namespace."""

import shutil
import subprocess

MODULES = ("fou", "fou6", "ipip", "ip6_tunnel", "dummy")
"""What has the features where they are modules. A kernel that has them built in, or none, does not know the names."""

_TUNNEL = "encap fou encap-sport auto encap-dport 5555"
_FEATURES = {
    "Foo-over-UDP for IPv4": "ip fou add port 5555 ipproto 4",
    "Foo-over-UDP for IPv6": "ip -6 fou add port 5555 ipproto 41",
    "IPv4 tunnels (ipip)": f"ip link add name t type ipip local 192.0.2.1 remote 192.0.2.2 {_TUNNEL}",
    "IPv6 tunnels (ip6tnl)": f"ip link add name t type ip6tnl local 2001:db8::1 remote 2001:db8::2 {_TUNNEL}",
    "flow-based IPv4 tunnels": "ip link add name t type ipip external",
    "flow-based IPv6 tunnels": "ip link add name t type ip6tnl external",
    "dummy links": "ip link add name t type dummy",
}
_SECONDS = 60


def missing_features() -> list[str]:
    """The features that the running kernel lacks, and what it said about each. Loads modules; needs root.

    Nothing is left: every question has a network namespace of its own.
    """
    load_modules()
    return [f"{feature} ({said})" for feature, command in _FEATURES.items() if (said := _complaint(command))]


def load_modules() -> None:
    """Load what can be loaded; what cannot shows in what does not work afterwards. Idempotent."""
    if shutil.which("modprobe"):
        subprocess.run(["modprobe", "--quiet", "--all", *MODULES], check=False, capture_output=True, timeout=_SECONDS)


def _complaint(command: str) -> str:
    done = subprocess.run(
        ["unshare", "--net", *command.split()], check=False, capture_output=True, text=True, timeout=_SECONDS
    )
    said = done.stderr.strip().removeprefix("Error: ")
    return (said or f"exit code {done.returncode}") if done.returncode else ""
