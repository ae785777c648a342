"""`python -m kubectl_coil`."""

import sys

from kubectl_coil.main import main

sys.exit(main())
