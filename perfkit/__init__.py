"""perfkit: GPU performance modeling and profiling for state-space layers.

See ``perfkit --help``; the package's layers, in import order, are listed in CONTRIBUTING.md.
"""

__version__ = "0.1.0"
