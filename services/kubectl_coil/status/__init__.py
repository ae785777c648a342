"""`kubectl coil status`: what Coil's programs, pools, Egresses and gateways are like, and what is wrong with them."""
