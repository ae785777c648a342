"""`kubectl coil sysdump`: what whoever helps from afar needs to see, in one file."""
