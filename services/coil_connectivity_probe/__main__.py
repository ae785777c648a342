"""`python -m coil_connectivity_probe`."""

import sys

from coil_connectivity_probe.main import main

sys.exit(main())
