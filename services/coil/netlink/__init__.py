"""The kernel's network of this node, over netlink.

Place in the flow: `coil.podnet` and `coil.egress` plan in the words of `coil.kernel`; this package, and nothing else in
the house, speaks netlink and enters namespaces. `host.HostNetwork` is its door for pods' attachments,
`overlay.OverlayNetwork` the one for the EIP gateway, and for tunnels `coil.nat` calls what is below them, from the top:

    host          asynchronous, what coild calls
    overlay       the same for the agent of the EIP gateway
    link_watch, overlay_watch    tell that a link is gone, that something of the overlay has changed
    table_watch   tells that somebody else has changed nftables tables
    conntrack     a node's connections: read, forgotten, and made to speak
    removal       deletes links, many at once
    attachment    one pod's veth: make, undo             }
    inspection    one pod's veth against its plan        } synchronous, run in
    route_sync    routes of a namespace                  } the threads of worker
    rule_sync     policy routing rules of a namespace    }
    tunnel_sync, tunnel_table    tunnels made and read   }
    fou           the ports that unwrap Foo-over-UDP     }
    vxlan_sync, mark_sync        the mesh, and ways into it  }
    eip_link, address_sync       floating addresses      }
    announcement, parent_table   on which links to tell of them  }
    peer_address  the addresses at a pod's end           }
    peer_namespace               who is behind a veth    }
    kernel_module                loads fou and fou6      }
    link_table, link_group, namespace, readiness, sysctl    what these use
    connection    one netlink socket: batches and dumps
    generic       families of generic netlink, by name
    *_message     links, tunnels, addresses, neighbours, routes and rules on the wire, both ways
    wire          headers and attributes

Why not pyroute2 here: encoding one route takes it 0.24 to 0.4 ms of interpreter time, and ADD needs fifteen messages
within 2 ms (here they take 0.2 ms together); its sockets leak queued replies and must not be shared between tasks. The
part of RFC 3549 that is needed is a few structs, and a plain socket per job, used by one thread, needs no lock. In the
tests, pyroute2 and iproute2 read what is written here.

Invariant: the event loop's thread never changes its namespace and never waits for the kernel.
"""
