"""`python -m coil_egress_agent`."""

import sys

from coil_egress_agent.main import main

sys.exit(main())
