"""What a model is: file formats, block types, architectures, tokenizer, chat template and the plan for the GPU.

Knows nothing of requests, scheduling or windows. Nothing here starts a thread; whoever loads a model calls in.
"""
