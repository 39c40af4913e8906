"""Sets Inglenook up on a machine that has only Python: environment, system packages, starter model.

It uses the standard library alone and imports nothing of the app; the app imports nothing of it.
"""
