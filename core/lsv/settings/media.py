"""The options of images, audio and video."""

from __future__ import annotations

from lsv.settings.setting import Setting, grouped

MEDIA = grouped(
    "Images, audio and video",
    "engine",
    Setting(
        name="limit_mm_per_prompt", type="counts",
        help="maximum items of media in a prompt, as image=2,audio=1 or JSON (default: 16 of each kind)", main=True
    ),
    Setting(
        name="language_model_only", type="bool", default=False,
        help="serve the language model alone: towers for media are not loaded where the model allows it, and requests "
        "with media are refused",
    ),
    Setting(name="mm_processor_kwargs", type="json", help="JSON options of the model's media processor"),
    Setting(name="allowed_local_media_path", help="folder that file: URLs may read from (default: none)"),
    Setting(
        name="allowed_media_domains", type="list", default=(),
        help="hosts from which media may be fetched: names or addresses, which may be private ones, *.example.com, or "
        "* for any public host (default: none)",
    ),
    Setting(
        name="image_fetch_timeout", type="float", default=5.0, low=0.1, env=("VLLM_IMAGE_FETCH_TIMEOUT",),
        help="time limit in seconds for fetching an image",
    ),
    Setting(
        name="audio_fetch_timeout", type="float", default=10.0, low=0.1, env=("VLLM_AUDIO_FETCH_TIMEOUT",),
        help="time limit in seconds for fetching audio",
    ),
    Setting(
        name="video_fetch_timeout", type="float", default=30.0, low=0.1, env=("VLLM_VIDEO_FETCH_TIMEOUT",),
        help="time limit in seconds for fetching a video",
    ),
    Setting(
        name="media_timeout", type="float", default=30.0, low=0.1,
        help="time limit in seconds for decoding and preparing a media item",
    ),
    Setting(
        name="media_memory_mb", type="float", default=2048.0, low=64,
        help="memory limit in MiB for decoding and preparing a media item",
    ),
    Setting(name="max_media_mb", type="float", default=64.0, low=0.001, help="maximum size of a media item in MiB"),
    Setting(
        name="max_decoded_mb", type="float", default=512.0, low=0.001,
        help="maximum size in MiB of all decoded media of a request together",
    ),
    Setting(
        name="max_image_pixels", type="int", default=64_000_000, low=1, help="most pixels of an image or frame"
    ),
    Setting(name="max_media_seconds", type="float", default=3600.0, low=0.1, help="longest audio or video in s"),
    Setting(name="max_video_frames", type="int", default=768, low=1, help="most frames sampled from a video"),
    Setting(
        name="confinement", default="auto", choices=("auto", "require", "off"),
        help="confine side processes as far as possible (auto), fully or fail (require), or not (off)",
    ),
)  # fmt: skip
