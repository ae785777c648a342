"""coil-egress-agent on a node: its end of the mesh, and the floating egress addresses (EIPs) that it carries.

    EgressGateways, policies, slices, tunnels, pools ─► change_tracker ─► data_plane_builder ─► elements ─► nftables
          │                                                                                                    ▲
          └─► node_assignment ─► lease_renewer ─ term ─► applier ─► mesh, eip_device, announcer           kernel_lease
                                      │                     │                                              (timeouts)
                                 Lease (API) ◄── applied ───┘

A node carries an EIP only while three things hold at once: the gateway's status gives it to the node for a term, the
node's Lease is of that term, and the last acknowledged renewal is younger than the fence. The third is kept twice: by
`lease_renewer`'s clock, and by timeouts in the kernel that `kernel_lease` refreshes, which need no process to expire.
"""
