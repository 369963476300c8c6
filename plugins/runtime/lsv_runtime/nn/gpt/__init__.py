"""The GPT line of decoders: layer norms, plain MLPs, fused projections, parallel residuals, positions or ALiBi."""
