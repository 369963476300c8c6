"""The platform without a Gaudi: strict fakes of its software."""
