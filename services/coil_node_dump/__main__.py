"""`python -m coil_node_dump`."""

import sys

from coil_node_dump.main import main

sys.exit(main())
