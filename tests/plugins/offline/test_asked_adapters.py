"""Which adapters a script's calls load."""

from lsv.request.adapter import Adapter, LoRARequest
from lsv_offline.arguments import AskedAdapters


def test_another_number_or_folder_is_another_adapter() -> None:
    asked = AskedAdapters()
    served = [Adapter(1, "a", "/a", b"")]
    assert asked.is_new(LoRARequest("b", 1, "/b"), served)
    assert asked.is_new(LoRARequest("a", 1, "/b"), served)
    assert not asked.is_new(LoRARequest("a", 7, "/a"), served)  # served from the start, with no number
    asked.note(LoRARequest("a", 7, "/a"))
    assert not asked.is_new(LoRARequest("a", 7, "/a"), served)
    assert asked.is_new(LoRARequest("a", 8, "/a"), served)  # trained further, and saved in the same place
