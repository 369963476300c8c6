"""The parts models are made of. Layers own parallelism and quantisation; models never see a rank."""
