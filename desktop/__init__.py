"""The window and the command line. Knows the engine only through its public face.

Qt is imported by the window's own modules alone, so that every command runs on a computer without a display.
"""
