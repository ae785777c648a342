class FreezeError(Exception):
    """The executable cannot be built; the text says why and, where something is missing, what to install."""
