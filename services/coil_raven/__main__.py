"""`python -m coil_raven`."""

import sys

from coil_raven.main import main

sys.exit(main())
