"""`kubectl coil connectivity`: real packets between pods of its own, and from them to where they should get."""
