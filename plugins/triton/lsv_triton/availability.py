"""Whether Triton kernels can run in this process."""

from __future__ import annotations

import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from lsv.offers import OpSpec
from lsv.settings import environment_with
from lsv_triton import intel_driver

DTYPES = ("float32", "bfloat16", "float16")

_INTEL = "intel"
_COMPILERS = ("gcc", "clang")
"""What Triton takes in this order, unless ``CC`` names another (``triton.runtime.build``)."""


def find_missing() -> str | None:
    """None, or what of the software is missing; whether there is a device is not asked.

    Triton builds its access to a driver when it is first used, with a C compiler; its interpreter needs none.
    """
    if find_spec("triton") is None:
        return "Triton, which comes with PyTorch's builds for GPUs and is not installed"
    try:
        import triton
        import triton.backends
    except Exception as cause:  # two builds in one place, a library that is not there: anything may be raised
        return (
            f"a Triton that can be imported ({type(cause).__name__}: {cause}): builds for different GPUs overwrite "
            "each other; reinstall torch with the one it came with"
        )
    if triton.knobs.runtime.interpret or triton.knobs.build.impl is not None:
        return None
    return _missing_compiler() or _missing_headers() or (intel_driver.find_missing() if _is_intels() else None)


def why_not_triton() -> str | None:
    """None, or what is missing: some software, or both a GPU's driver and the interpreter (``TRITON_INTERPRET=1``)."""
    missing = find_missing()
    if missing is not None:
        return f"needs {missing}"
    import triton
    from triton.backends import backends

    if triton.knobs.runtime.interpret:
        return None
    active = [name for name, backend in backends.items() if backend.driver.is_active()]
    if active:
        return intel_driver.why_not_built() if _INTEL in active else None
    return "Triton finds no GPU driver, and its interpreter (TRITON_INTERPRET=1) is not on"


def why_not_floats(spec: OpSpec) -> str | None:
    """None, or why a kernel over plain floats can't serve ``spec`` in this process."""
    if spec.dtype not in DTYPES:
        return f"{spec.dtype} is not one of {', '.join(DTYPES)}"
    return why_not_triton()


def _is_intels() -> bool:
    """Whether this is Intel's build of Triton."""
    from triton.backends import backends

    return _INTEL in backends


def _missing_compiler() -> str | None:
    named = environment_with({}).get("CC")
    if named is not None:
        return None if shutil.which(named) else f"a C compiler, and there is none at CC={named}: correct or unset it"
    if any(map(shutil.which, _COMPILERS)):
        return None
    other = shutil.which("cc")
    if other is not None:
        return f"a C compiler, which Triton looks for as {' or '.join(_COMPILERS)}: set CC={other}"
    return "a C compiler: install the package gcc, or name another compiler by CC"


def _missing_headers() -> str | None:
    scheme = sysconfig.get_default_scheme()
    folder = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]  # as Triton does
    if Path(folder, "Python.h").exists():
        return None
    version = sysconfig.get_python_version()
    return f"{folder}/Python.h: install the package python{version}-dev (python3-devel where packages are RPMs)"
