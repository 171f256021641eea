"""Pieces of the pages, built from values that were read before; none of them reads from the
server."""
