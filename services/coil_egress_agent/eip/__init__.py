"""coil-egress-agent on a node: its end of the mesh, and the floating egress addresses (EIPs) that it carries.

    EgressGateways, policies, slices, tunnels, pools ─► cluster_picture ─► element changes ─► nft_store ─► nftables
          │                                                                      ▲                           ▲
          └─► gateway_share ─► lease_keeper ─ term ─► applier ─► overlay network, announcer           fuse (timeouts)
                                    │                    │
                               Lease (API) ◄── applied ──┘

A node carries an EIP only while three things hold at once: the gateway's status gives it to the node for a term, the
node's Lease is of that term, and the last acknowledged renewal is younger than the fence. The third is kept twice: by
`lease_keeper`'s clock, and by timeouts in the kernel that the `fuse` refreshes, which need no process to expire.
"""
