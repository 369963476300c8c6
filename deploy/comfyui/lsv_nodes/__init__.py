"""A node of ComfyUI that asks a server, about pictures where there are some: put this folder into ``custom_nodes``.

Its answer is text, for whatever node takes that. The server is any that speaks OpenAI's API, as ``lsv serve`` does.
"""

from __future__ import annotations

import base64
import io
import json
import urllib.error
import urllib.request
from typing import Any

import numpy as np
from PIL import Image

_SECONDS = 600


class Ask:
    """Named, and its members too, as ComfyUI wants it."""

    CATEGORY = "lsv"
    FUNCTION = "ask"
    RETURN_TYPES = ("STRING",)
    RETURN_NAMES = ("answer",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "question": ("STRING", {"multiline": True, "default": "What is in this picture?"}),
                "url": ("STRING", {"default": "http://localhost:8000/v1"}),
                "max_tokens": ("INT", {"default": 256, "min": 1, "max": 32768}),
                "temperature": ("FLOAT", {"default": 0.7, "min": 0.0, "max": 2.0, "step": 0.1}),
            },
            "optional": {
                "images": ("IMAGE",),
                "model": ("STRING", {"default": ""}),
                "api_key": ("STRING", {"default": ""}),
            },
        }

    def ask(
        self, question: str, url: str, max_tokens: int, temperature: float, images: Any = None, model: str = "",
        api_key: str = "",
    ) -> tuple[str]:  # fmt: skip
        """``images`` are float [count, height, width, 3] from 0 to 1. Raises ``RuntimeError`` by the server's words."""
        parts: list[dict[str, Any]] = [_part(image) for image in (() if images is None else images)]
        content = [*parts, {"type": "text", "text": question}]
        body = {
            "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens, "temperature": temperature,
            **({"model": model} if model else {}),
        }  # fmt: skip
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {api_key}"} if api_key else {})}
        address = f"{url.rstrip('/')}/chat/completions"
        request = urllib.request.Request(address, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as refused:
            raise RuntimeError(f"the server answered {refused.code}: {refused.read().decode()}") from refused
        return (answer["choices"][0]["message"]["content"] or "",)


def _part(image: Any) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray((np.clip(np.asarray(image), 0, 1) * 255).round().astype(np.uint8)).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


NODE_CLASS_MAPPINGS = {"LsvAsk": Ask}
NODE_DISPLAY_NAME_MAPPINGS = {"LsvAsk": "Ask lsv"}
