"""Egress NAT in the demo, seen from the machine: where it can be shown, how long that takes, and did it hold.

It is a process of its own, begun with the demo. The control plane runs here, the scene (`egress_scene`) on a kernel
with Foo-over-UDP: this one, or that of a virtual machine. Everything ends with it, also where it fails or is stopped.
"""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

from integration.demo.narration import DemoError, render_opening, step
from integration.demo.part import play
from integration.egress.description import VARIABLE
from integration.egress.outside import start_outside
from integration.vm.feature import missing_features
from integration.vm.kernel import cached_kernel
from integration.vm.machine import Accelerator, choose_accelerator
from integration.vm.run import Place, Terms, run_with_fou

TIMEOUT = 1800.0
NICENESS = 5
_TITLE = "Egress NAT: leave the cluster as somebody else"
_STORY = (
    "Hosts outside often let in only addresses that they know. Coil lets chosen pods leave the cluster through router "
    "pods, and be seen as these; all other pods are left alone. The tunnels from pod to router are Foo-over-UDP."
)
_AHEAD = (
    "This part began together with the demo, with the time that the others left. So the beginning of it is over by now."
)
_NATIVE = "This machine's kernel has Foo-over-UDP, so the nodes are network namespaces of it, and nothing is emulated."
_ACCELERATED = (
    "Its processors are those of this machine (KVM), and nothing is emulated. The control plane stays outside."
)
_EMULATED = (
    "Its processors are emulated, because this machine offers no hardware virtualization (KVM): most of the time "
    "below is QEMU translating instructions, and it all takes about {minutes} minutes. The control plane stays outside."
)
_MINUTES = 6


def show_egress() -> None:
    """The whole part. Raises DemoError if something did not hold, KernelError or MachineError without a kernel."""
    began = time.monotonic()
    missing = missing_features()
    accelerator = choose_accelerator()
    kernel = cached_kernel()
    print(render_announcement(missing, accelerator=accelerator, kernel=kernel.version if kernel else ""), flush=True)
    with ExitStack() as stack:
        description, path = step(
            "the control plane: etcd, API server, controllers, Coil's own", lambda: stack.enter_context(start_outside())
        )
        if missing:
            print("·  the virtual machine boots", flush=True)
        entered = time.monotonic()
        code = run_with_fou(
            [sys.executable, "-m", "integration.demo.egress_scene"],
            terms=Terms(place=Place.GUEST if missing else Place.MACHINE, timeout=TIMEOUT, payload=[description.proxy]),
            environment={**os.environ, VARIABLE: str(path)},
        )
    if code:
        raise DemoError(f"egress NAT did not hold (exit code {code}); the lines above say what")
    ended = time.monotonic()
    print(render_end(missing, accelerator=accelerator, seconds=ended - began, scene_seconds=ended - entered))


def render_announcement(missing: Sequence[str], *, accelerator: Accelerator, kernel: str) -> str:
    """What is going to be shown, and where; `missing` is what this machine's kernel lacks."""
    paragraphs = [_STORY]
    if missing:
        said = "This machine's kernel has no Foo-over-UDP, so this part runs in a virtual machine with Debian's kernel"
        how = _EMULATED.format(minutes=_MINUTES) if accelerator is Accelerator.EMULATION else _ACCELERATED
        paragraphs.append(f"{said} {kernel}.".replace(" .", ".") + f" {how}")
    else:
        paragraphs.append(_NATIVE)
    paragraphs.append(_AHEAD)
    return render_opening(_TITLE, *paragraphs)


def render_end(missing: Sequence[str], *, accelerator: Accelerator, seconds: float, scene_seconds: float) -> str:
    """What it took, and where: of the whole part, the scene is what the virtual machine costs time for."""
    where = "on this machine's kernel"
    if missing:
        processors = "emulated processors" if accelerator is Accelerator.EMULATION else "KVM"
        where = f"in a virtual machine with {processors}, from its boot to its end"
    return f"Egress NAT held, in {seconds:.0f} s: {scene_seconds:.0f} s of it {where}."


def main() -> int:
    # What is shown meanwhile comes first: in the part before, leases last for a fraction of a second.
    os.nice(NICENESS)
    return play(show_egress)


if __name__ == "__main__":
    sys.exit(main())
