"""What every grammar back end must hold: schemas as a table, and ways through them drawn at random."""
