"""`python -m integration.vm [OPTIONS] -- COMMAND…`: run a command on a kernel that has Foo-over-UDP."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from integration.vm.kernel import KernelError
from integration.vm.machine import MachineError
from integration.vm.run import MEMORY, TIMEOUT, Place, Terms, run_with_fou


def main(arguments: Sequence[str]) -> int:
    """The exit code of the command; 125 when it could not be run."""
    parser = argparse.ArgumentParser(prog="python -m integration.vm", description=__doc__)
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--guest", action="store_const", dest="place", const=Place.GUEST, help="never on this kernel")
    place.add_argument("--here", action="store_const", dest="place", const=Place.MACHINE, help="on this kernel only")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, metavar="SECONDS")
    parser.add_argument("--memory", type=int, default=MEMORY, metavar="MIB", help="of the virtual machine")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="writable in the virtual machine")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    parser.set_defaults(place=Place.ANYWHERE)
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print("namespaces, modules and the machine's files need root; run the same command as root", file=sys.stderr)
        return 125
    results = options.results.resolve() if options.results else None
    terms = Terms(place=options.place, timeout=options.timeout, memory=options.memory, results=results)
    try:
        return run_with_fou(options.command, terms=terms)
    except (KernelError, MachineError) as error:
        print(error, file=sys.stderr)
        return 125
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
