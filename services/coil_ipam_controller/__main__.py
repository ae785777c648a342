"""`python -m coil_ipam_controller`."""

import sys

from coil_ipam_controller.main import main

sys.exit(main())
