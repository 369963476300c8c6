"""The turn markers, and the chat template that puts messages between them."""

END_OF_TEXT = "<|endoftext|>"
START_OF_TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"
MARKERS = (END_OF_TEXT, START_OF_TURN, END_OF_TURN)
MEDIA = {"image": "<|image|>", "audio": "<|audio|>", "video": "<|video|>"}
"""What stands in a turn for a picture, a sound or a clip."""

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['content'] is string %}{{- message['content'] }}"
    "{%- elif message['content'] %}"
    "{%- for part in message['content'] %}"
    "{%- if part['type'] in ('image', 'audio', 'video') %}{{- '<|' + part['type'] + '|>' }}"
    "{%- else %}{{- part['text'] or '' }}{%- endif %}"
    "{%- endfor %}"
    "{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""Content may be a string, a list of parts, absent or None; the system turn is optional."""


def turn_start(role: str) -> str:
    """What stands before the content of a turn of `role`."""
    return f"{START_OF_TURN}{role}\n"
