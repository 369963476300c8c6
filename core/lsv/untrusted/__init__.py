"""Input that others wrote: files opened with bounds, and patterns that they hold matched with bounds."""
