"""Everything that the shader layer raises, as one tree. Knows nothing else; any thread.

ShaderError
    SourceError        a WGSL file breaks a rule of the loader, or its header does not match its bindings
    BindingError       a buffer is missing, too small, or beyond a limit of the device
    NoUsableAdapter    no Vulkan, Metal or D3D12 adapter
    OutOfDeviceMemory  an allocation was refused
    DeviceLost         the driver gave up, or the device was destroyed
"""


class ShaderError(Exception):
    """Root of the shader layer's errors."""


class SourceError(ShaderError):
    """A WGSL file is refused; the message starts with file and line."""


class BindingError(ShaderError):
    """Buffers and kernel do not fit together; found before anything is submitted."""


class NoUsableAdapter(ShaderError):
    """There is no adapter to run on; the message says what was looked for."""


class OutOfDeviceMemory(ShaderError):
    """The device refused an allocation."""


class DeviceLost(ShaderError):
    """The device is gone; everything on it is lost."""
