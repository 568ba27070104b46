"""Tables, figures as data and texts made from results; no physics."""
