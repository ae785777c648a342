"""`python -m coil_cni`: the plugin from a source tree. On a node the installer's launcher does this."""

from coil_cni.main import main

main()
