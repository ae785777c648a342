"""`python -m coil_migrator`."""

import sys

from coil_migrator.main import main

sys.exit(main())
