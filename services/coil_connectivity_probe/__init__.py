"""The program in the pods of `kubectl coil connectivity`: one end answers, the other asks."""
