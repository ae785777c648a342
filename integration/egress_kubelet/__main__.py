"""`python -m integration.egress_kubelet [PYTEST ARGUMENTS]`: the control plane here, the node where Foo-over-UDP is."""

import os
import sys
from collections.abc import Sequence

from integration.cluster.build_steps import BuildError
from integration.cluster.process import ComponentError
from integration.cluster.programs import NODE, locate
from integration.egress.__main__ import PYTEST
from integration.egress.description import VARIABLE
from integration.egress_kubelet.outside import start_outside
from integration.image.build import build_image
from integration.image.error import ImageBuildError
from integration.uplink_watch import UplinkWatch, describe_leaks
from integration.verdict.result import FOLDER
from integration.vm.kernel import KernelError
from integration.vm.machine import MachineError
from integration.vm.run import Terms, run_with_fou

TIMEOUT = 3600.0
MEMORY = 6144
"""In MiB: the programs, the image, and what containerd makes of it."""


def main(arguments: Sequence[str]) -> int:
    """pytest's exit code, or 1 when packets have left the machine; 125 when it could not be run."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        image = build_image()
        with UplinkWatch() as watch, start_outside(image) as (_, path):
            code = run_with_fou(
                [*PYTEST, *(arguments or ["integration/egress_kubelet"])],
                terms=Terms(timeout=TIMEOUT, memory=MEMORY, results=FOLDER, payload=[*locate(NODE).values(), image]),
                environment={**os.environ, VARIABLE: str(path)},
            )
        if leaks := watch.leaks():
            print(describe_leaks(leaks), file=sys.stderr)
            return code or 1
        return code
    except (BuildError, ComponentError, ImageBuildError, KernelError, MachineError) as error:
        print(error, file=sys.stderr)
        return 125
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
