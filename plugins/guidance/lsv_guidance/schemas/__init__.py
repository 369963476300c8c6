"""JSON schemas rewritten into smaller ones of the same meaning, or a narrower one, that llguidance follows exactly.

``document`` finds places, ``expand`` and ``negate`` turn a schema into branches without applicators, ``options`` and
``names`` turn branches into what one value may be, and ``write`` writes that as a schema.
"""
