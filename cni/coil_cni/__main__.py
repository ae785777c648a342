"""`python -m coil_cni`: the plugin from a source tree. On a node it is one file (`coil_freezer`)."""

from coil_cni.plugin import main

main()
