"""`coil-installer`: puts the plugin and the network configuration on a node, as an init container or by hand.

    settings: checked text ◄─ environment ───────────────────────────────────┐ last
    node_files: checked bytes ◄─ what coil-freezer built ─► the plugin `coil` ─┴─► durable_file ─► the node

A runtime starts using the network when the configuration appears, so that is written last and removed first.
Each file comes into being by a rename, complete and on disk; on bad input nothing is touched at all.
"""
