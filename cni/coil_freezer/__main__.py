"""`python -m coil_freezer`."""

from coil_freezer.main import main

main()
