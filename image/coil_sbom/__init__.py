"""What the image is made of: an SBOM of it, and which known defects that has.

The build of the image runs it (Dockerfile); nothing of it is in the image.
"""
