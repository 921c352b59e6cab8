"""How the members of a default fit are trained: all at once, each without a part of the rows."""
