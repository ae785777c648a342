"""coil-node-dump: what a node's kernel holds of networking, as one JSON document, for `kubectl coil`.

    main ─► dump ─► kernel_reader (pyroute2) ─► kernel
                 ├► coil.nft.table_sync (libnftables) ─► ruleset
                 └► coild's inspection page, on localhost

It is executed in a pod of Coil on the node, reads, and changes nothing. The kernel is decoded by pyroute2 and not by
`coil.netlink`: where Coil's own codec is wrong, this shows it. The process ends after one document, so that what the
library's import costs is paid by nobody else.
"""
