"""Families of the GPT line: layer norms, plain or gated MLPs, parallel residuals, learned positions or ALiBi."""
