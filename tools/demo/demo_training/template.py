"""The turn markers, and the chat template that puts messages between them."""

END_OF_TEXT = "<|endoftext|>"
START_OF_TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"
MARKERS = (END_OF_TEXT, START_OF_TURN, END_OF_TURN)
MEDIA = {"image": "<|image|>", "audio": "<|audio|>", "video": "<|video|>"}
"""What stands in a turn for a picture, a sound or a clip."""

CHAT_TEMPLATE = (
    "{#- Calls: <tool_call>. Thoughts: <think> and </think>; those of earlier turns are left out. -#}"
    "{%- macro said(message) %}"
    "{%- if message['content'] is string %}{{- message['content'] }}"
    "{%- elif message['content'] %}"
    "{%- for part in message['content'] %}"
    "{%- if part['type'] in ('image', 'audio', 'video') %}{{- '<|' + part['type'] + '|>' }}"
    "{%- else %}{{- part['text'] or '' }}{%- endif %}"
    "{%- endfor %}"
    "{%- endif %}"
    "{%- for call in message['tool_calls'] or () %}"
    "{%- set called = call['function'] %}"
    "{{- '\\n' if message['content'] or not loop.first else '' }}"
    "{{- '<tool_call>\\n{\"name\": ' + (called['name'] | tojson) + ', \"arguments\": ' }}"
    "{{- called['arguments'] if called['arguments'] is string else (called['arguments'] | tojson) }}"
    "{{- '}\\n</tool_call>' }}"
    "{%- endfor %}"
    "{%- endmacro %}"
    "{%- macro signature(function) %}"
    "{%- set schema = function['parameters'] or {} %}"
    "{{- function['name'] + '(' }}"
    "{%- for name in schema['properties'] or () %}"
    "{{- (', ' if not loop.first else '') + name }}"
    "{{- '?' if schema['required'] is defined and name not in schema['required'] else '' }}"
    "{%- endfor %}"
    "{{- ')' + (': ' + function['description'] if function['description'] else '') }}"
    "{%- endmacro %}"
    "{%- if tools %}"
    "{{- '<|im_start|>system\\n' }}"
    "{%- if messages[0]['role'] == 'system' %}{{- said(messages[0]) + '\\n\\n' }}{%- endif %}"
    "{{- 'Functions:' }}"
    "{%- for tool in tools %}{{- '\\n' + signature(tool['function']) }}{%- endfor %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{%- if not (tools and loop.first and message['role'] == 'system') %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + said(message) + '<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}{{- '<think>\\n' if enable_thinking else '' }}"
    "{%- endif %}"
)
"""Content may be a string, a list of parts, absent or None; the system turn is optional.

Tools stand at the end of the system turn, each by its signature: names of parameters, with a question mark behind those
that may be left out. Calls are written as Hermes 2 does it. ``enable_thinking`` opens the thoughts.
"""

THINK = "<think>\n"
THOUGHT = "\n</think>\n\n"
"""What stands before and behind a thought."""


def turn_start(role: str) -> str:
    """What stands before the content of a turn of `role`."""
    return f"{START_OF_TURN}{role}\n"
