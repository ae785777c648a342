"""`coil-installer`: puts the plugin and the network configuration on a node, as an init container or by hand.

    settings ◄─ environment       conflist: checked text ─────────────────────┐ last
    executable: checked bytes ◄─ what coil-freezer built ─► the plugin `coil` ─┴─► node_files

A runtime starts using the network when the configuration appears, so that is written last and removed first.
Each file comes into being by a rename, complete and on disk; on bad input nothing is touched at all.
"""
