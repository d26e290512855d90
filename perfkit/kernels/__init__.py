"""Kernels: one folder a family, one file a method and phase; ``lang`` is the language they are written in."""
