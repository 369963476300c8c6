"""Results as tables and charts."""
