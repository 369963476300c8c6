"""The Responses API: conversations as items, answers that are stored, and work in the background."""
