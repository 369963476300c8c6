"""Which devices the installed torch, with the backends that are installed beside it, can compute on. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv.capabilities import DeviceInfo
from lsv_runtime.devices.probing import ask_child

_ASK = """
import json, os
kind, found = KIND, {}
try:
    import torch
    found["torch"] = torch.__version__
    if not kind:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        kind = accelerator.type if accelerator is not None else "cpu"
    device = torch.device(kind)
    found["kind"], found["dtypes"] = device.type, []
    torch.zeros(1, device=device)
    module = None if device.type == "cpu" else torch.get_device_module(device.type)
    counted = getattr(module, "device_count", None)
    found["count"] = counted() if counted else 1
    for name in ("bfloat16", "float16", "float32"):
        try:
            one = torch.ones(2, 2, dtype=getattr(torch, name)).to(device)
            if float((one @ one).float().cpu().sum()) == 8:
                found["dtypes"].append(name)
        except Exception:
            pass
    told = getattr(module, "mem_get_info", None)
    most = getattr(module, "recommended_max_memory", None)
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    found["total"] = int(told(0)[1]) if told else int(most()) if most else host
    named = getattr(module, "get_device_name", None)
    found["name"] = str(named(0)) if named else f"torch's {device.type}"
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
print(json.dumps(found))
"""
"""Prints what torch knows of a kind of device, or without one of its accelerator, by computing a little there."""


def ask(kind: str = "") -> Mapping[str, Any]:
    """What torch says of a kind of device, such as ``"mps"``; of its accelerator, or the processor, without one."""
    return ask_child(_ASK.replace("KIND", repr(kind), 1)) or {"error": "the process that was to ask torch failed"}


def devices(kind: str = "") -> tuple[DeviceInfo, ...]:
    """Of that kind, those that compute; ``detail`` has their kind and dtypes."""
    found = ask(kind)
    if "error" in found or not found["dtypes"]:
        return ()
    detail = {"kind": found["kind"], "dtypes": ",".join(found["dtypes"])}
    return tuple(DeviceInfo(index, found["name"], found["total"], detail) for index in range(found["count"]))


def why_not(kind: str) -> str | None:
    """None, or why torch can't compute on a kind of device, and what to do."""
    found = ask(kind)
    if "torch" not in found:
        return f"torch can't be asked about devices ({found['error']}): reinstall it"
    if "error" in found:
        return (
            f"torch {found['torch']} can't compute on torch.device({kind!r}) ({found['error']}): install the build of "
            "torch, or the backend beside it (such as torch_npu), that has this kind of device, or name another by "
            "--torch-device"
        )
    if not found["dtypes"]:
        return f"torch.device({kind!r}) multiplies matrices wrongly in bfloat16, float16 and float32"
    return None


def explain() -> str:
    return why_not("") or "name a kind of device by --torch-device"
