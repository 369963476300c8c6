"""What takes part in a worker beside its model: it carries out orders, and may act before a step."""
