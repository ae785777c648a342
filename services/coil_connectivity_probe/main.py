"""coil-connectivity-probe: `serve` tells whoever comes which address it sees; `ask` asks targets, and prints answers.

    coil-connectivity-probe serve --port=8080
    coil-connectivity-probe ask --timeout=5 tcp://10.0.0.1:8080 udp://[fd00::1]:8080 name://kubernetes.default.svc

Exit codes: 0, also where targets do not answer; 2 for a command line that cannot be read.
"""

import argparse
import asyncio
import signal
import sys

import msgspec

from coil_connectivity_probe.asking import TargetError, ask_all
from coil_connectivity_probe.server import serve

NAME = "coil-connectivity-probe"


def main() -> int:
    parser = argparse.ArgumentParser(prog=NAME, description="One end of a connectivity test: it answers, or it asks.")
    commands = parser.add_subparsers(dest="command", required=True)
    serving = commands.add_parser("serve", help="tell whoever comes which address it comes from, by TCP and UDP")
    serving.add_argument("--port", type=int, required=True)
    asking = commands.add_parser("ask", help="ask targets, and print the answers as JSON")
    asking.add_argument("--timeout", type=float, default=5.0, help="seconds for each target")
    asking.add_argument(
        "targets", nargs="+", metavar="TARGET", help="tcp://, udp://, connect:// or name:// and a place"
    )
    options = parser.parse_args()
    if options.command == "serve":
        # As the first process of a container it has to say so itself.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            asyncio.run(serve(options.port))
        except KeyboardInterrupt:
            return 0
    try:
        answers = asyncio.run(ask_all(options.targets, seconds=options.timeout))
    except TargetError as error:
        parser.error(str(error))
    sys.stdout.buffer.write(msgspec.json.encode(answers) + b"\n")
    return 0
