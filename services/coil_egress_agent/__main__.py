"""`python -m coil_egress_agent`."""

import sys

from coil_egress_agent.egress.main import main

sys.exit(main())
