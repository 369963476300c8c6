"""Beeps, and questions about their number and pitch."""

from __future__ import annotations

from random import Random

import numpy as np

from demo_training.senses.asked import Shown, Turn, counted, said
from lsv.media.processor import Audio

PITCHES = {"low": (130.0, 400.0), "middle": (600.0, 1100.0), "high": (1700.0, 4000.0)}
"""Lowest and highest frequency in Hz."""
MOST = 6
ASPECTS = (MOST + 1, len(PITCHES))
"""Classes of each label: how many beeps, and their pitch."""


def sound(rng: Random, rate: int) -> Shown:
    """One to six beeps of like pitch, in quiet or in a little noise."""
    count = rng.randint(1, MOST)
    pitch = rng.choice(list(PITCHES))
    low, high = PITCHES[pitch]
    hertz = low * (high / low) ** rng.random()
    length, gap = rng.uniform(0.08, 0.4), rng.uniform(0.1, 0.5)
    before, behind = rng.uniform(0, 0.8), rng.uniform(0.02, 1.5)
    wave = _wave(rng, hertz, round(length * rate), rate)
    period = round((length + gap) * rate)
    samples = np.zeros(round(before * rate) + (count - 1) * period + len(wave) + round(behind * rate), np.float32)
    for index in range(count):
        start = round(before * rate) + index * period
        samples[start : start + len(wave)] += wave * rng.uniform(0.8, 1)
    if rng.random() < 0.4:
        noise = np.random.default_rng(rng.getrandbits(32)).standard_normal(len(samples), np.float32)
        samples += noise * np.float32(10 ** rng.uniform(-4, -1.6))
    samples *= rng.uniform(0.1, 0.9) / np.abs(samples).max()
    labels = count, list(PITCHES).index(pitch)
    key = f"{count} {hertz:.0f} {length:.2f} {gap:.2f}"
    return Shown("audio", Audio(samples.astype(np.float32), rate), _ask(rng, count, pitch), key, labels)


def _wave(rng: Random, hertz: float, length: int, rate: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """One beep: a pure tone, or one with overtones, faded in and out."""
    angle = 2 * np.pi * hertz * np.arange(length, dtype=np.float32) / rate
    kind = rng.random()
    wave = np.sin(angle)
    if kind > 0.6:
        wave += sum(np.sin(overtone * angle) / overtone for overtone in (3, 5) if overtone * hertz < 0.45 * rate)
    elif kind > 0.45:
        wave += 0.5 * np.sin(2 * angle)
    fade = min(length // 2, round(rng.uniform(0.001, 0.02) * rate))
    ramp = np.linspace(0, 1, fade, dtype=np.float32)
    wave[:fade] *= ramp
    wave[length - fade :] *= ramp[::-1]
    return wave.astype(np.float32)


def _ask(rng: Random, count: int, pitch: str) -> tuple[Turn, ...]:
    beeps = counted(count, "beep")
    return (
        Turn("beeps", said(rng, "How many beeps do you hear?", "How many beeps are there?", "Count the beeps."),
             f"I hear {beeps}."),
        Turn("beeps", said(rng, "How many sounds do you hear?", "How many tones are there?", "How often does it beep?"),
             f"I hear {beeps}."),
        Turn("pitch", said(rng, "What is the pitch?", "Is the pitch high or low?", "Is it high, middle or low?"),
             f"The pitch is {pitch}."),
        Turn("pitch", said(rng, "How high is the sound?", "Is the sound high or low?", "What pitch do the beeps have?"),
             f"The pitch is {pitch}."),
        Turn("describe", said(rng, "What do you hear?", "Describe the sound.", "What is this sound?"),
             f"{counted(count, f'{pitch} beep')}."),
    )  # fmt: skip
