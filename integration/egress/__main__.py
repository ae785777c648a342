"""`python -m integration.egress [PYTEST ARGUMENTS]`: the control plane here, the tests where Foo-over-UDP is."""

import os
import sys
from collections.abc import Sequence

from coil_freezer.error import FreezeError
from integration.cluster.build_steps import BuildError
from integration.cluster.process import ComponentError
from integration.cluster.programs import COIL_V2, Program, locate
from integration.egress.coil_v2 import COIL_V2_VARIABLE
from integration.egress.description import VARIABLE
from integration.egress.outside import start_outside
from integration.plugin.executable import plugin_executable
from integration.uplink_watch import UplinkWatch, describe_leaks
from integration.verdict.result import FOLDER
from integration.vm.kernel import KernelError
from integration.vm.machine import MachineError
from integration.vm.run import Terms, run_with_fou

TIMEOUT = 7200.0
"""Seconds. The session `egress_slow` takes about an hour in emulation; the boot and each test have their own bounds."""
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout=1800"]
"""With a bound for each test that emulation does not reach."""


def main(arguments: Sequence[str]) -> int:
    """pytest's exit code, or 1 when packets have left the machine; 125 when it could not be run."""
    FOLDER.mkdir(parents=True, exist_ok=True)  # a guest shares nothing else that it writes
    try:
        # Built here and carried along: under emulation the compiler would take minutes.
        payload = [plugin_executable()]
        environment = dict(os.environ)
        if environment.get(COIL_V2_VARIABLE):
            coil_v2 = locate(COIL_V2)[Program.COIL_V2_COILD].parent
            payload.append(coil_v2)
            environment[COIL_V2_VARIABLE] = str(coil_v2)
        with UplinkWatch() as watch, start_outside() as (description, path):
            code = run_with_fou(
                [*PYTEST, *(arguments or ["integration/egress"])],
                terms=Terms(timeout=TIMEOUT, results=FOLDER, payload=[description.proxy, *payload]),
                environment=environment | {VARIABLE: str(path)},
            )
        if leaks := watch.leaks():
            print(describe_leaks(leaks), file=sys.stderr)
            return code or 1
        return code
    except (BuildError, FreezeError, ComponentError, KernelError, MachineError) as error:
        print(error, file=sys.stderr)
        return 125
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
