class ImageBuildError(Exception):
    """The image cannot be built here; the message says why and what to do."""
