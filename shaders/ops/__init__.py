"""Typed host sides of kernels: each checks what it is given, picks the variant and binds by name."""
