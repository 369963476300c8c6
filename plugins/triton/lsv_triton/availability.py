"""Whether Triton kernels can run in this process."""

from __future__ import annotations

from importlib.util import find_spec

from lsv.offers import OpSpec

DTYPES = ("float32", "bfloat16", "float16")


def why_not_triton() -> str | None:
    """None, or what is missing: the package, or both a GPU's driver and the interpreter (``TRITON_INTERPRET=1``)."""
    if find_spec("triton") is None:
        return "needs Triton, which is not installed: it comes with PyTorch's builds for GPUs"
    import triton
    from triton.backends import backends

    if triton.knobs.runtime.interpret or any(backend.driver.is_active() for backend in backends.values()):
        return None
    return "Triton finds no GPU driver, and its interpreter (TRITON_INTERPRET=1) is not on"


def why_not_floats(spec: OpSpec) -> str | None:
    """None, or why a kernel over plain floats can't serve ``spec`` in this process."""
    if spec.dtype not in DTYPES:
        return f"{spec.dtype} is not one of {', '.join(DTYPES)}"
    return why_not_triton()
