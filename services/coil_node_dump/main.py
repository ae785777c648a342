"""coil-node-dump: what this node's kernel holds of networking, as one JSON document on standard output.

Exit codes: 0, also where parts could not be read (`troubles` says why); 2 for flags that cannot be read.
"""

import os
import sys

import msgspec

from coil.runtime.flag import parse_settings
from coil_node_dump.settings import Settings

NAME = "coil-node-dump"
ABOUT = "Prints what this node's kernel holds of networking, as one JSON document. Reads, and changes nothing."


def main() -> int:
    settings = parse_settings(Settings, sys.argv[1:], os.environ, program=NAME, about=ABOUT)
    # After the flags: what is imported for it takes half a second.
    from coil_node_dump.dump import dump_node

    sys.stdout.buffer.write(msgspec.json.encode(dump_node(settings), enc_hook=str))
    sys.stdout.buffer.write(b"\n")
    sys.stdout.flush()
    return 0
