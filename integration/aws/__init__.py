"""AWS as far as a node's addresses go: a strict EC2 that runs here, and tests that hold it against AWS's own words."""
