"""The serving core: threads, actions, request ledger, pages and sampling. It never imports Qt."""

__version__ = "0.1.0"
