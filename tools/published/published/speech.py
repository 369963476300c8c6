"""Speech that espeak-ng says, through the library of the package espeakng-loader."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
_SYNCHRONOUS = 2
"""AUDIO_OUTPUT_SYNCHRONOUS of espeak-ng's speak_lib.h: espeak_Synth returns when all is said."""
_UTF8 = 1
_SPEED, _WORDS_A_MINUTE = 1, 140
_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class Voice:
    """espeak-ng, from the folder of the package. A process has one at a time."""

    def __init__(self, folder: Path) -> None:
        self._library = ctypes.CDLL(str(folder / "libespeak-ng.so"))
        self._rate = self._library.espeak_Initialize(_SYNCHRONOUS, 0, str(folder).encode(), 0)
        if self._rate <= 0:
            raise OSError(f"espeak-ng finds no espeak-ng-data in {folder}")
        self._library.espeak_SetParameter(_SPEED, _WORDS_A_MINUTE, 0)

    def say(self, language: str, text: str) -> NDArray[np.float32]:
        """Samples between -1 and 1, ``RATE`` a second."""
        said: list[NDArray[np.int16]] = []

        def keep(samples: ctypes._Pointer[ctypes.c_short], count: int, _events: int) -> int:
            if samples and count:
                said.append(np.ctypeslib.as_array(samples, (count,)).copy())
            return 0

        callback, data = _Callback(keep), text.encode()
        self._library.espeak_SetSynthCallback(callback)
        self._library.espeak_SetVoiceByName(language.encode())
        self._library.espeak_Synth(data, len(data) + 1, 0, 1, 0, _UTF8, None, None)
        return _resample((np.concatenate(said) / 32768).astype(np.float32), self._rate)


def _resample(samples: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """Leaves out the frequencies that the lower rate has no room for."""
    count = len(samples) * RATE // rate
    spectrum = np.fft.rfft(samples)[: count // 2 + 1]
    return (np.fft.irfft(spectrum, count) * (count / len(samples))).astype(np.float32)
