"""What every screen is made of: tables, figures as data, numbers in words, drawings for the terminal."""
