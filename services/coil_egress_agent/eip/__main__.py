"""`python -m coil_egress_agent.eip`."""

import sys

from coil_egress_agent.eip.main import main

sys.exit(main())
