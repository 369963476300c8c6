"""Matrix products over plain, coded and integer weights, and mixtures of experts."""
