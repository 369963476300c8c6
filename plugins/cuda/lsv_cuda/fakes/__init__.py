"""Strict fakes of vendors' libraries of attention, made of the signatures that are kept beside them as data."""
