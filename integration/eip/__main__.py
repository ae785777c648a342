"""`python -m integration.eip [PYTEST ARGUMENTS]`: the control plane here, the tests in the virtual machine.

Without arguments a few of them: they are slow there, and only the device that carries the addresses is another one.
"""

import os
import sys
from collections.abc import Sequence

from integration.cluster.build_steps import BuildError
from integration.cluster.process import ComponentError
from integration.egress.description import VARIABLE
from integration.eip.control_plane import start_control_plane
from integration.vm.kernel import KernelError
from integration.vm.machine import MachineError
from integration.vm.run import Place, Terms, run_with_fou

TIMEOUT = 1800.0
SMOKE = (
    "integration/eip/test_packet_path.py::test_a_pod_on_any_node_is_seen_as_the_address_of_its_policy",
    "integration/eip/test_change.py::test_a_planned_move_has_one_holder_at_a_time",
)


def main(arguments: Sequence[str]) -> int:
    """pytest's exit code; 125 when it could not be run."""
    try:
        with start_control_plane() as description:
            # Where the guest sees it, beside the other files that it names.
            path = description.agent_kubeconfig.with_name("stage.json")
            description.write(path)
            return run_with_fou(
                [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *(arguments or SMOKE)],
                terms=Terms(place=Place.GUEST, timeout=TIMEOUT),
                environment={**os.environ, VARIABLE: str(path)},
            )
    except (BuildError, ComponentError, KernelError, MachineError) as error:
        print(error, file=sys.stderr)
        return 125
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
