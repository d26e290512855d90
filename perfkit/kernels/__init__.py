"""Kernels: one folder a family, one file per method and phase, beside the family's oracle."""
