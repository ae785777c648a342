"""`python -m coil_egress_controller`."""

import sys

from coil_egress_controller.main import main

sys.exit(main())
