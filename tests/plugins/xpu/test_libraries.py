"""Which vendor libraries are found, said by their versions before any is imported."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from lsv.offers import load_object
from lsv_base.errors import ConfigError
from lsv_runtime.emulation.fakes import StrictFake
from lsv_xpu import libraries, plugin
from lsv_xpu.devices_table import by_short_name
from lsv_xpu.emulation.platform import EmulatedXpuPlatform, emulated_info


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    libraries.forget()
    yield
    libraries.forget()


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Have these versions installed; underscores stand for dashes."""
    found = {name.replace("_", "-"): version for name, version in versions.items()}
    monkeypatch.setattr(libraries, "installed", found.get)


@pytest.mark.parametrize(
    ("ipex", "torch", "word"),
    [
        (None, "2.13.0+cpu", ".[ipex]"),
        ("2.8.0", "2.13.0+cpu", "PyTorch 2.8 beside intel-extension-for-pytorch 2.8.0 (found torch 2.13.0+cpu)"),
        ("2.8.0", "2.8.0+cu128", None),
        ("2.10.10+xpu", "2.10.0+xpu", None),
        ("2.10.10+xpu", "2.1.0", "PyTorch 2.10"),
    ],
)
def test_ipex_wants_its_own_torch(
    ipex: str | None, torch: str, word: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"torch": torch} | ({} if ipex is None else {"intel_extension_for_pytorch": ipex})
    install(monkeypatch, **versions)
    missing = libraries.missing_ipex()
    assert missing is None if word is None else word in (missing or "")


@pytest.mark.parametrize(
    ("kernels", "torch", "word"),
    [
        (None, "2.13.0+xpu", "vllm-xpu-kernels==0.1.15.1 beside torch 2.13"),
        ("0.1.16.2", "2.13.0+cpu", "found torch 2.13.0+cpu"),
        ("0.1.16.2", "2.14.0+xpu", None),
        ("0.1.15.3", "2.14.1+xpu", None),
        ("0.1.15.1", "2.13.0+xpu", None),
        ("0.1.14.1", "2.13.0+xpu", None),
        ("0.1.16.2", "2.13.0+xpu", "PyTorch 2.14 for XPU"),
        ("0.1.16.2", "2.13.0+xpu", "or vllm-xpu-kernels 0.1.15.1, which"),
        ("0.1.12.1", "2.14.0+xpu", "PyTorch 2.13 for XPU"),
        ("0.1.14.1", "2.12.0+xpu", "(found torch 2.12.0+xpu)"),
    ],
)
def test_vllm_kernels_want_the_torch_they_are_built_for(
    kernels: str | None, torch: str, word: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, torch=torch, **({} if kernels is None else {"vllm_xpu_kernels": kernels}))
    missing = libraries.missing_vllm_kernels()
    assert missing is None if word is None else word in (missing or "")
    assert (libraries.missing_torch_int4() is None) == ("xpu" in torch)


def test_flash_attention_is_not_for_alchemist(monkeypatch: pytest.MonkeyPatch) -> None:
    (offer,) = (offer for offer in plugin.lsv_attention() if offer.name == "xpu-flash")
    assert offer.missing is not None
    assert "vllm-xpu-kernels" in (offer.missing() or "")
    install(monkeypatch, torch="2.14.0+xpu", vllm_xpu_kernels="0.1.16.2")
    for model, word in (("A770", "found Intel Arc A770"), ("B60", None)):
        info = emulated_info(0, by_short_name(model), 1 << 30)
        monkeypatch.setattr(plugin, "probe", lambda info=info: (info,))
        assert offer.missing() is None if word is None else word in (offer.missing() or "")


def test_what_does_not_load_is_missing_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, torch="2.14.0+xpu", vllm_xpu_kernels="0.1.16.2")
    reason = libraries.why_not(libraries.VLLM)
    assert reason is not None
    assert "No module named 'vllm_xpu_kernels'" in reason
    with pytest.raises(ConfigError, match="can't be used here"):
        libraries.obtain(libraries.VLLM)


@pytest.mark.parametrize("choice", libraries.EMULATED)
def test_emulation_has_the_fakes_it_is_asked_for_and_nothing_else(choice: str) -> None:
    libraries.emulate(choice)
    for name in libraries.LIBRARIES:
        faked = name in libraries.EMULATED[choice]
        assert (libraries.why_not(name) is None) == faked
        if faked:
            assert hasattr(libraries.obtain(name), "calls")
        else:
            assert "emulated" in (libraries.why_not(name) or "")


def test_calls_that_a_capture_takes_as_a_whole() -> None:
    libraries.emulate("vllm")
    assert "flash_attn_varlen_func" in {name for _, name in libraries.opaque_calls()}


def calls_of(owner: type) -> dict[str, inspect.Signature]:
    """The public methods of a class that answers a library's calls, except those that every fake has."""
    methods = inspect.getmembers(owner, inspect.isfunction)
    return {
        name: inspect.signature(method)
        for name, method in methods
        if not name.startswith("_") and not hasattr(StrictFake, name)
    }


Signatures = tuple[inspect.Signature | None, inspect.Signature | None]


def differences(real: type, fake: type) -> dict[str, Signatures]:
    """Calls that one of the two lacks, or that take other arguments."""
    wanted, found = calls_of(real), calls_of(fake)
    both = {name: (wanted.get(name), found.get(name)) for name in sorted(wanted.keys() | found.keys())}
    return {name: signatures for name, signatures in both.items() if signatures[0] != signatures[1]}


@pytest.mark.parametrize("name", libraries.LIBRARIES)
def test_a_fake_takes_the_calls_of_what_it_stands_for(name: str) -> None:
    library = libraries.LIBRARIES[name]
    real, fake = load_object(library.load), load_object(library.fake)
    assert calls_of(real)
    assert differences(real, fake) == {}
    assert set(fake.opaque) <= calls_of(real).keys()


def test_a_fake_with_other_arguments_is_caught() -> None:
    class Real:
        def norm(self, x: int, *, eps: float) -> None: ...
        def mul(self, x: int) -> None: ...

    class Fake(StrictFake):
        def norm(self, x: int, eps: float) -> None: ...
        def add(self, x: int) -> None: ...

    assert list(differences(Real, Fake)) == ["add", "mul", "norm"]
    assert differences(Real, Real) == {}


def test_a_gpu_the_package_is_not_compiled_for_gets_none_of_its_ops() -> None:
    """Its binaries are native code for some families, so on others no kernel of it starts."""
    for model, word in (
        ("B60", None),
        ("Max 1100", None),
        ("A770", "Battlemage or Ponte Vecchio (found Intel Arc A770"),
    ):
        options = {"xpu.emulated_kernels": "vllm", "xpu.emulated_model": model}
        device = EmulatedXpuPlatform().open(0, options)
        reason = libraries.why_not(libraries.VLLM)
        assert reason is None if word is None else word in (reason or "")
        assert libraries.why_not(libraries.TORCH_INT4) is None
        assert device.largest_allocation == (None if word is None else (4 << 30) - (2 << 20))
        device.close()


def test_fp8_products_are_for_gpus_that_have_them() -> None:
    for wanted, word in ((None, "8-bit floats (found Intel Arc Pro B60"), ("1", None), ("0", "other than 0")):
        options = {"xpu.emulated_kernels": "vllm"} | ({} if wanted is None else {"xpu.fp8_activations": wanted})
        EmulatedXpuPlatform().open(0, options)
        reason = libraries.why_not(libraries.FP8_GEMM)
        assert reason is None if word is None else word in (reason or "")
        assert libraries.why_not(libraries.VLLM) is None
