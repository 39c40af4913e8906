"""WGSL kernels and the thin typed layer that runs them on wgpu. Knows nothing of models, requests or files."""
