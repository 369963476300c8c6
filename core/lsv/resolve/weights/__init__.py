"""How weights are held: their format, the layers that are left out, the text they are fitted to."""
