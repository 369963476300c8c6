"""Families that hear as well as see, and others whose towers are put together from those of their neighbours."""
