"""What every route shares: context, bodies, errors, access, metrics, server-sent events."""
