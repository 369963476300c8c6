"""A sound in a message."""

from __future__ import annotations

import base64
import io
import math
import struct
import wave
from collections.abc import Sequence

from options import connect

RATE = 16000


def beep(seconds: float = 0.5, hertz: float = 440.0) -> bytes:
    """A tone as a WAV file; a recording's bytes would do."""
    samples = (int(12000 * math.sin(2 * math.pi * hertz * at / RATE)) for at in range(int(seconds * RATE)))
    data = b"".join(struct.pack("<h", sample) for sample in samples)
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(RATE)
        sound.writeframes(data)
    return file.getvalue()


def main(arguments: Sequence[str] | None = None) -> None:
    client, model = connect(__doc__, arguments)
    sound = {"data": base64.b64encode(beep()).decode(), "format": "wav"}
    content = [{"type": "input_audio", "input_audio": sound}, {"type": "text", "text": "How many beeps are there?"}]
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": content}], max_tokens=48, temperature=0
    )
    print(answer.choices[0].message.content)


if __name__ == "__main__":
    main()
