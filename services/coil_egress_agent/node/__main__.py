"""`python -m coil_egress_agent.node`."""

import sys

from coil_egress_agent.node.main import main

sys.exit(main())
