"""Pictures in messages: one by its URL, which the server fetches, one in base64, and two at once."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from options import connect
from PIL import Image, ImageDraw


def draw(colour: str) -> str:
    """A circle, as a URL that holds its picture; of one on the web its address would do."""
    file, picture = io.BytesIO(), Image.new("RGB", (224, 224), "white")
    ImageDraw.Draw(picture).ellipse((56, 56, 168, 168), fill=colour)
    picture.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def main(arguments: Sequence[str] | None = None) -> None:
    client, model = connect(__doc__, arguments)

    def ask(question: str, *urls: str) -> None:
        parts: list[Any] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        content = [*parts, {"type": "text", "text": question}]
        answer = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": content}], max_tokens=48, temperature=0
        )
        print(f"{len(urls)} picture(s): {question} {answer.choices[0].message.content}")

    ask("What colour is it?", draw("red"))
    ask("What colour are they?", draw("red"), draw("blue"))


if __name__ == "__main__":
    main()
