"""A small adapter by which the shipped model says the same in another manner: as a pirate would."""
