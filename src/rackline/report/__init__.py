"""Tables, figures and sentences made from results."""
