"""What a conversation's keys and values become once they leave the GPU: kv blocks in host memory and on disk.

A kv block is up to 64 tokens, that is up to four pages; its key is a hash over the model's fingerprint and every token
up to its end. This package knows files, bytes and hashes. It knows neither the device nor the engine's requests.
"""
